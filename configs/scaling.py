"""Acceptance against size of the drafter and tokens that it was trained on.

  python -m experiments.studies.scaling --config=configs/scaling.py
  python -m experiments.studies.scaling --config=configs/scaling.py:smoke
  python -m experiments.studies.scaling --config=configs/scaling.py \\
      --config.tokens='(1_000_000, 2_000_000, 4_000_000, 8_000_000)' \\
      --workdir=runs/scaling_long

Four drafters of the shipped Python target, each trained on four numbers of
tokens. Each of the sixteen is a training of its own, whose learning rate rises
over a tenth of the steps and falls to 0 at the end: a checkpoint in the midst
of a longer training has a rate that has not fallen, and accepts less than its
tokens allow (Hoffmann et al. 2022, arXiv 2203.15556, section 3.1).

The trainings are short, so that Muon makes the most of few steps; of fewer
tokens a drafter learns little more than how frequent tokens are.

Minutes: 13 on two cores of an Intel Xeon. To expect: the largest drafter on the
most tokens has an overlap of 0.56 with its target, which grows by 0.26 with a
tenfold number of tokens (docs/results/scaling.md).
"""

import ml_collections

from configs import common
from configs import train


def get_config(preset="default"):
  """Returns the settings of a preset, "default" or "smoke"."""
  common.check_preset(preset, _PRESETS)
  training = train.get_config("draft")
  # One loss all along, so that there is no moment at which it changes.
  training.update(final_loss=training.loss, sample_fraction=0.0, windows=(128,),
                  batch_tokens=512, optimizer="muon", learning_rate=3e-3)
  config = ml_collections.ConfigDict(dict(
      # See `configs/train.py`. `sizes`, `steps`, `warmup_steps`, `workdir` and
      # `export` follow from the other fields.
      training=training,
      # Names -> sizes of each, as `training.sizes`.
      drafters={f"d{dim}x{layers}": dict(
          dim=dim, num_layers=layers, num_heads=dim // 32, hidden_dim=2 * dim)
                for dim, layers in ((32, 1), (64, 1), (96, 2), (128, 3))},
      # Of the trainings, with tokens / `training.batch_tokens` steps each.
      tokens=(65_536, 131_072, 262_144, 524_288),
      warmup=0.1,  # share of the steps in which the learning rate rises
      method="speculative(4)",  # which decodes with the drafters
      temperatures=(0.0, 1.0),
      prompts=96,  # beginnings of held-out windows
      prompt_length=32,
      max_new_tokens=48,
      compilation_cache=True,  # whether programs are kept in the workdir
  ))
  config.update(_PRESETS[preset])
  return config


_PRESETS = {
    "default": {},
    "smoke": {"tokens": (2048, 4096), "prompts": 8, "max_new_tokens": 16,
              "training": {"eval_windows": 8},
              "temperatures": (1.0,)},
}
