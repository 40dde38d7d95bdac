"""Arrays that a run computes once and keeps in files, so that it may resume."""

import functools
import sys

import numpy as np

from experiments.app import multihost


def rows(folder, name, count, width, size, make) -> np.ndarray:
  """Returns `count` rows of tokens `[R, width]`, kept in a folder, `size` a
  file. `make` is `(numbers of the rows of a file, the first) -> rows`."""
  folder.mkdir(parents=True, exist_ok=True)
  parts = []
  with multihost.progress(count, "text", desc=name) as bar:
    for first in range(0, count, size):
      path = folder / f"{first:08}.npy"
      # The last file is filled up to the compiled shape.
      chosen = np.arange(first, first + size) % count
      keep(path, functools.partial(make, chosen, first), (size, width))
      parts.append(np.load(path))
      bar.update(min(size, count - first))
  return np.concatenate(parts)[:count]


def keep(path, make, tokens=None) -> None:
  """Writes the array `make()` to a file that is not there, or not whole: of
  `tokens`, if that is a shape."""
  # All processes compute; the first one decides and writes.
  if multihost.from_first(lambda: _is_whole(path, tokens)):
    return
  array = make()

  def write():
    partial = path.with_suffix(".partial")
    with open(partial, "wb") as f:
      np.save(f, array)
    partial.replace(path)

  multihost.from_first(write)


def _is_whole(path, tokens):
  try:
    array = np.load(path, mmap_mode="r")
    if tokens and (array.shape != tokens or array.dtype != np.int32):
      raise ValueError(f"{array.dtype}{list(array.shape)}, not "
                       f"int32{list(tokens)}")
  except FileNotFoundError:
    return False
  except (EOFError, OSError, ValueError) as e:
    print(f"'{path}' is damaged ({e}): it is written again.", file=sys.stderr)
    return False
  return True
