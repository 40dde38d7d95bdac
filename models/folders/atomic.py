"""Folders that appear whole or not at all, and what is read from them."""

import contextlib
import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np


def partial(folder) -> pathlib.Path:
  """Where a folder is written before it is complete."""
  folder = pathlib.Path(folder).resolve()
  return folder.with_name(f".{folder.name}.partial")


@contextlib.contextmanager
def replacing(folder):
  """Gives an empty folder, which takes the place of `folder` at the end.

  If an exception leaves the context, it is removed, and `folder` is as before.

  Args:
    folder: an older one is replaced.

  Yields:
    A `pathlib.Path`.
  """
  unfinished = partial(folder)
  shutil.rmtree(unfinished, ignore_errors=True)
  unfinished.mkdir(parents=True)
  try:
    yield unfinished
    replace(folder)
  finally:
    shutil.rmtree(unfinished, ignore_errors=True)


def replace(folder) -> None:
  """Puts the finished `partial(folder)` in the place of an older one."""
  folder = pathlib.Path(folder).resolve()
  old = folder.with_name(f".{folder.name}.old")
  shutil.rmtree(old, ignore_errors=True)
  if folder.exists():
    folder.rename(old)
  partial(folder).rename(folder)
  shutil.rmtree(old, ignore_errors=True)


def write_json(path, value) -> None:
  """Writes a value for people to read."""
  path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def check_finite(folder, name: str, x) -> None:
  """Checks a parameter that has been read.

  Args:
    folder: that it comes from, or a file; for the error.
    name: of the parameter.
    x: array, of the host or on devices.

  Raises:
    ValueError: if a value is infinite or NaN.
  """
  finite = np.isfinite(x).all() if isinstance(x, np.ndarray) else _finite(x)
  if not finite:
    raise ValueError(f"'{folder}': parameter {name} has infinite or NaN values "
                     f"in {x.dtype}.")


@jax.jit
def _finite(x):
  return jnp.isfinite(x).all()
