"""What several configurations share."""

# Heads that are trained alike for a comparison, as `head` of configs/train.py.
HEADS = ("medusa", "hydra", "hydra++", "clover1", "clover", "chimera", "eagle",
         "fspad", "mtp", "eagle3", "p-eagle", "dflash", "dspark",
         "domino", "dflash2")
# How arXiv 2402.14160 samples its tasks.
PAPER = {"xsum": {"temperatures": (0.3,)},
         "wmt18_de_en": {"temperatures": (0.3,)},
         "dolly": {"temperatures": (1.0,), "top_p": 0.95}}


def with_presets(config, known, *names):
  """Updates a config by presets, after `--config=<file>:`; returns it."""
  for name in names:
    if name not in known:
      raise ValueError(f"--config: preset {name!r} is not one of "
                       f"{', '.join(known)}.")
    config.update(known[name])
  return config
