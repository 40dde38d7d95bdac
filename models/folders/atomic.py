"""Folders that appear whole or not at all, with one writer at a time."""

import contextlib
import errno
import json
import os
import pathlib
import shutil

try:
  import fcntl
except ImportError:  # Windows.
  fcntl = None

import jax
import jax.numpy as jnp
import numpy as np


def partial(folder) -> pathlib.Path:
  """Returns where a folder is written before it is complete."""
  folder = pathlib.Path(folder).resolve()
  return folder.with_name(f".{folder.name}.partial")


@contextlib.contextmanager
def replacing(folder):
  """Yields an empty folder, which replaces `folder` at the end. If an
  exception leaves the context, `folder` is as before. Raises ValueError if
  another process is writing it."""
  unfinished = partial(folder)
  with locked(folder):
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
      yield unfinished
      replace(folder)
    finally:
      shutil.rmtree(unfinished, ignore_errors=True)


@contextlib.contextmanager
def locked(folder):
  """Keeps every other process from writing a folder, which need not exist. The
  lock is one of the operating system on a file next to the folder: it ends with
  the process that holds it. Where a file system has no locks, nobody is kept
  from anything. Raises ValueError if another process or thread holds it."""
  folder = pathlib.Path(folder).resolve()
  path = folder.with_name(f".{folder.name}.lock")
  try:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = _locked_file(path)
  except OSError as e:  # It would name a file that nobody asked for.
    number = errno.ENOTDIR if e.errno == errno.EEXIST else e.errno
    raise OSError(number, os.strerror(number), str(folder)) from e
  if file is None:
    raise ValueError(f"'{folder}' is being written by another process.")
  try:
    yield
  finally:
    # First the name and then the lock: whoever opens the file in between finds
    # that it has no name any more, see `_locked_file`.
    path.unlink(missing_ok=True)
    file.close()


def _locked_file(path):
  """Returns an open file with the lock; None if somebody else has it."""
  while True:
    file = open(path, "w")  # pylint: disable=consider-using-with
    try:
      if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
      if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
        return file
    except FileNotFoundError:
      pass  # Its last holder has removed it: another attempt makes a new one.
    except OSError as e:
      if e.errno in (errno.EACCES, errno.EAGAIN):
        file.close()
        return None
      return file
    file.close()


def replace(folder) -> None:
  """Replaces an older folder by the finished `partial(folder)`."""
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
  """Raises ValueError, naming the parameter, for infinite or NaN values."""
  finite = np.isfinite(x).all() if isinstance(x, np.ndarray) else _finite(x)
  if not finite:
    raise ValueError(f"'{folder}': parameter {name} has infinite or NaN values "
                     f"in {x.dtype}.")


@jax.jit
def _finite(x):
  return jnp.isfinite(x).all()
