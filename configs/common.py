"""What several configurations share."""

# Heads that are trained alike for a comparison, as `head` of configs/train.py.
HEADS = ("medusa", "hydra", "hydra++", "clover1", "clover", "chimera", "eagle",
         "fspad", "mtp", "eagle3", "p-eagle", "dflash", "dspark",
         "domino", "dflash2")


def check_preset(name, known):
  """Raises `ValueError` unless a name after `--config=<file>:` is known."""
  if name not in known:
    raise ValueError(f"--config: preset {name!r} is not one of "
                     f"{', '.join(known)}.")
