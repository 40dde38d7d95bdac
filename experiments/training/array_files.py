"""Arrays that a run computes once and keeps in files, so that it may resume."""

import numpy as np

from experiments.app import multihost


def keep(path, make, is_whole=None) -> None:
  """Writes the array `make()` to a file that is not there, or not whole."""
  # All processes compute; the first one decides and writes.
  if multihost.from_first(is_whole or path.is_file):
    return
  array = make()

  def write():
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as f:
      np.save(f, array)
    partial.replace(path)

  multihost.from_first(write)
