"""Digests of a run's checkpoints, which tell damage from other errors."""

import itertools
import sys
import time

from experiments.app import file_digests
from experiments.app import launch
from experiments.app import multihost
from experiments.harness import store

_ASIDE = "damaged"


def record(folder, step) -> None:
  """Records the digests of a checkpoint that has just been written."""
  def write():
    path = folder.with_suffix(".json")
    known = {name: digests for name, digests in file_digests.read(path).items()
             if (folder / name).is_dir()}
    store.save(path, {**known, str(step): _digests(folder / str(step))})

  multihost.from_first(write, launch.UserError)


def set_damaged_aside(folder) -> None:
  """Moves the newest checkpoints into `damaged` if their files have changed.

  `UserError` if no other checkpoint is left; nothing is moved then.
  """
  def move():
    known = file_digests.read(folder.with_suffix(".json"))
    steps = sorted((int(path.name) for path in folder.glob("*")
                    if path.name.isdecimal()), reverse=True)
    with launch.user_errors(OSError):
      # One without digests is of a process that was killed before it made them.
      damaged = list(itertools.takewhile(
          lambda step: str(step) in known and known[str(step)] != _digests(
              folder / str(step)), steps))
    if damaged and damaged == steps:
      raise launch.UserError(
          f"'{folder}' has no checkpoint that can be read: files of step "
          f"{damaged[0]} have changed since they were written.")
    for step in damaged:
      target = folder.with_name(_ASIDE) / f"{step}-{time.time_ns()}"
      target.parent.mkdir(exist_ok=True)
      (folder / str(step)).rename(target)
      print(f"'{folder / str(step)}' is damaged: going back to step "
            f"{steps[len(damaged)]}. It is kept as '{target}'.",
            file=sys.stderr)

  multihost.from_first(move, launch.UserError)


def _digests(folder):
  """Returns the digests of all files of a folder by their names."""
  return {path.relative_to(folder).as_posix(): file_digests.of(path)
          for path in sorted(folder.rglob("*")) if path.is_file()}
