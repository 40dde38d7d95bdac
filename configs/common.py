"""Checks that all configurations share."""


def check_preset(name, known):
  """Raises `ValueError` unless a name after `--config=<file>:` is known."""
  if name not in known:
    raise ValueError(f"--config: preset {name!r} is not one of "
                     f"{', '.join(known)}.")
