"""Masked-diffusion decoding: accuracy against forwards a token.

  python -m experiments.diffusion --config=configs/diffusion.py
  python -m experiments.diffusion --config=configs/diffusion.py:smoke

The shipped model `canvas-tasks` on list operations, Sudoku and Latin squares,
by every method of `dj.canvas.methods`; no download.

Hardware: a CPU.
Minutes: 3 on two cores of an Intel Xeon with AMX; `smoke` 1.
To expect: `static(1)` right in 0.71 of the examples with 1.56 forwards a token,
`free_dave(1, 4)` the same tokens with 0.67, `threshold(0.9)` 2.7 times as fast.
"""

import ml_collections

from configs import common

_PRESETS = {
    "default": {},
    "smoke": {"methods": ("static(1)", "free_dave(1, 4)", "threshold(0.9)",
                          "learn2pd(0.9)"),
              "examples": 48, "filter_examples": 48, "filter_steps": 100},
}


def get_config(preset="default"):
  c = ml_collections.ConfigDict()
  c.model = "canvas-tasks"  # Folder or name, trained on `canvas_tasks`.
  # As `dj.canvas.methods` are called; others are compared with the first.
  c.methods = (
      "static(1)", "static(2)", "static(4)", "static(8)",
      "free_dave(1, 4)", "free_dave(2, 4)",
      "threshold(0.9)", "threshold(0.7)", "threshold(0.5)", "factor(1)",
      "local_leap(0.9, 0.75, 4)", "local_leap(0.7, 0.5, 4)",
      "local_leap(0.5, 0.3, 4)", "learn2pd(0.9)", "learn2pd(0.7)",
      "learn2pd(0.5)")
  c.canvas_tasks = (  # They take turns.
      "copy", "reverse", "sort", "insert", "remove", "replace", "sudoku",
      "shuffle", "insert_any", "remove_any", "replace_any", "latin")
  c.examples = 576  # Of all tasks together.
  c.batch = 24  # Rows decoded together, task by task; the unit of time.
  c.block = 8  # Positions of a block; divides 16.
  c.temperature = 0.0  # 0 takes the most probable token of a position.
  c.eos = False  # Ends a row once its text up to an end of text is filled.
  # What the filter of Learn2PD learns from, and for how long.
  c.filter_examples, c.filter_steps = 768, 2000
  c.seed = 0
  return common.with_presets(c, _PRESETS, preset)
