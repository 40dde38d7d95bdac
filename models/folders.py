"""Folders that appear whole or not at all."""

import contextlib
import json
import pathlib
import shutil


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
