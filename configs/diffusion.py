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

_ALL = ("copy", "reverse", "sort", "insert", "remove", "replace", "sudoku",
        "shuffle", "insert_any", "remove_any", "replace_any", "latin")
_METHODS = (
    "static(1)", "static(2)", "static(4)", "static(8)",
    "free_dave(1, 4)", "free_dave(2, 4)",
    "threshold(0.9)", "threshold(0.7)", "threshold(0.5)", "factor(1)",
    "local_leap(0.9, 0.75, 4)", "local_leap(0.7, 0.5, 4)",
    "local_leap(0.5, 0.3, 4)", "learn2pd(0.9)", "learn2pd(0.7)",
    "learn2pd(0.5)")


def get_config(preset="default"):
  """Returns the configuration of `experiments.diffusion`.

  Args:
    preset: "smoke" or "default".

  Returns:
    A ConfigDict with the fields:
      model: folder or name of a model trained with `canvas_tasks`.
      methods: as `dj.canvas.methods` are called; the first one is what others
        are compared with.
      canvas_tasks: of `experiments.data.canvas_tasks`; they take turns.
      examples: how many, of all tasks together.
      batch: rows decoded together, task by task; a batch is the unit of time.
      block: places of a block; divides 16.
      temperature: 0 takes the most probable token of a place.
      eos: whether a row ends once its text up to an end of text is filled;
        else all canvases are filled to their end.
      filter_examples, filter_steps: what the filter of Learn2PD learns from,
        and for how long.
      limits: tokens a step, for the limits of parallel decoding.
      limit_examples: lists for each of them.
      limit_length: people in each list.
      seed: of examples and noise.
  """
  common.check_preset(preset, _PRESETS)
  config = ml_collections.ConfigDict(dict(
      model="canvas-tasks",
      methods=_METHODS,
      canvas_tasks=_ALL,
      examples=576,
      batch=24,
      block=8,
      temperature=0.0,
      eos=False,
      filter_examples=768,
      filter_steps=2000,
      limits=(1, 2, 4, 8),
      limit_examples=192,
      limit_length=8,
      seed=0,
  ))
  config.update(_PRESETS[preset])
  return config


_PRESETS = {
    "default": {},
    "smoke": {"methods": ("static(1)", "free_dave(1, 4)", "threshold(0.9)",
                          "learn2pd(0.9)"),
              "examples": 48, "batch": 24, "filter_examples": 48,
              "filter_steps": 100, "limits": (8,), "limit_examples": 48},
}
