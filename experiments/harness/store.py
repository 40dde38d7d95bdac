"""A folder of results: settings, environment, and one JSON line per result.

    run.json       settings, and the environment of each start
    results.jsonl  a line as soon as a result is computed

Of several processes only the first one reads and writes.
"""

import calendar
import datetime
import errno
import functools
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import jax

try:
  import fcntl
except ImportError:  # Windows has no such locks.
  fcntl = None  # Nobody is kept out of a folder then.

from decoding_jax import kernels
from experiments.app import compilation_cache
from experiments.app import launch
from experiments.app import multihost
from experiments.app import own_code
from experiments.app import preemption
from models.folders import json_files

RUN, RESULTS = "run.json", "results.jsonl"
LOCK = ".lock"
# Open lock files, which keep other processes out as long as this one runs.
_locks = {}
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_PACKAGES = ("decoding_jax", "flax", "jax", "jaxlib", "numpy")
# Fields of `environment` that seconds depend on.
_TIMED = ("python", "cpus", "kernels", "devices", "versions")


def open_workdir(workdir, settings, free=(), flag="--workdir", *,
                 results=(RESULTS,), timed=False, compiled=False):
  """Creates or reopens a folder of results, a Path, and writes its `run.json`.

  `settings` are all that results depend on, as JSON values; those that are
  `free` only choose which are computed. Other or unknown settings, another
  environment of `timed` results, and another process there are a `UserError`.
  """
  if not str(workdir):
    raise launch.UserError(f"{flag} is empty: a folder is needed.")
  launch.check_folder(flag, workdir)
  workdir = pathlib.Path(workdir)
  multihost.from_first(
      lambda: _open(workdir, settings, free, flag, results, timed),
      launch.UserError)
  if compiled:
    compilation_cache.keep(workdir / compilation_cache.FOLDER)
  return workdir


def started_at(workdir) -> datetime.datetime:
  """Returns the local time of a run's first start, else the present.

  Chat templates insert this date.
  """
  def first_start():
    try:
      start = json.loads((pathlib.Path(workdir) / RUN).read_text())["starts"][0]
      return calendar.timegm(time.strptime(start["time"], _TIME))
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
      return time.time()

  return datetime.datetime.fromtimestamp(multihost.from_first(first_start))


def _open(workdir, settings, free, flag, results, timed):
  path = workdir / RUN
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    _lock(workdir)
    held = [name for name in results if _holds(workdir / name)]
    if not path.exists() and held:
      raise ValueError(f"it has {held[0]}, but no {RUN} that would tell the "
                       f"settings of these results; choose another {flag}")
    record = json_files.read(path) if path.exists() else {
        "settings": settings, "starts": []}
    if not (isinstance(record.get("settings"), dict)
            and isinstance(record.get("starts"), list)
            and all(isinstance(start, dict) for start in record["starts"])):
      raise ValueError(f"'{path}' is of another program")
  except (OSError, ValueError) as e:
    raise launch.UserError(f"{flag}={workdir} cannot be used: {e}.") from e
  # What both have of the user's own modules must not have changed.
  code = own_code.DIGESTS
  settings = {**{k: v for k, v in record["settings"].items()
                 if k.startswith(own_code.CODE)}, **settings, **code}
  record["settings"] = {**code, **record["settings"]}
  difference = first_difference(*(
      {k: v for k, v in x.items() if k not in free}
      for x in (record["settings"], settings)))
  if difference:
    name, before, now = difference
    raise launch.UserError(
        f"'{workdir}' has results of {name}={before!r}, not of {now!r}: choose "
        f"another {flag}, or the same settings.")
  here = environment()
  if timed and held and record["starts"]:
    _check_environment(workdir, record["starts"][-1], here, flag)
  record["settings"] = settings
  record["starts"].append(here)
  save(path, record)


def _holds(path):
  """Returns whether a file or a folder exists and is not empty."""
  return any(path.iterdir()) if path.is_dir() else (
      path.is_file() and path.stat().st_size > 0)


def _check_environment(workdir, old, new, flag):
  """Raises `UserError` if timings of two starts are not comparable."""
  difference = first_difference(*({k: x.get(k) for k in _TIMED}
                                  for x in (old, new)))
  if difference:
    name, before, now = difference
    raise launch.UserError(
        f"'{workdir}' has timings with {name}={before!r}; here it is {now!r}, "
        f"which may be faster or slower: choose another {flag}, or restore the "
        "old environment.")


def _lock(workdir):
  """Locks a folder; raises `OSError` if another process is at work there."""
  key = workdir.resolve()
  if fcntl is None or key in _locks:
    return
  file = open(workdir / LOCK, "w")  # pylint: disable=consider-using-with
  try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as e:
    file.close()
    if e.errno in (errno.EACCES, errno.EAGAIN):
      raise OSError("another process is at work there") from e
    return  # A file system without locks.
  _locks[key] = file


def load(path):
  """Returns the JSON object that `save` wrote, or {} if there is no file."""
  with launch.user_errors(OSError, ValueError):
    return json.loads(path.read_text()) if path.exists() else {}


def save(path, value):
  """Writes a JSON object atomically: the whole file appears, or none."""
  replace_text(path, json.dumps(value, indent=2) + "\n")


def replace_text(path, text):
  """Writes a file atomically; a `UserError` where that cannot be."""
  partial = path.with_suffix(".partial")
  with launch.user_errors(OSError):
    partial.write_text(text)
    partial.replace(path)


def first_difference(old, new, prefix=""):
  """Returns (dotted name, old value, new value) of a changed field, or None."""
  for name in sorted({*old, *new}):
    a, b = old.get(name), new.get(name)
    if isinstance(a, dict) and isinstance(b, dict):
      inner = first_difference(a, b, f"{prefix}{name}.")
      if inner:
        return inner
    elif a != b:
      return prefix + name, a, b
  return None


def environment():
  """Returns what results may depend on besides their settings, for JSON."""
  return {
      "time": time.strftime(_TIME, time.gmtime()),
      "arguments": sys.argv[1:],
      "commit": _commit(),
      "python": platform.python_version(),
      "platform": platform.platform(),
      "cpus": kernels.cores(),
      "kernels": "native" if kernels.available() else "xla",
      "devices": [d.device_kind for d in jax.devices()],
      "versions": {name: importlib.metadata.version(name)
                   for name in _PACKAGES
                   if [*importlib.metadata.Distribution.discover(name=name)]},
  }


@functools.cache
def _commit():
  """Returns the commit of this clone, "-dirty" if files differ, or None."""
  root = pathlib.Path(__file__).parents[2]
  if not (root / ".git").exists():
    return None
  try:
    return subprocess.run(
        ["git", "-C", root, "describe", "--always", "--dirty", "--abbrev=12"],
        capture_output=True, text=True, timeout=10, check=True).stdout.strip()
  except (OSError, subprocess.SubprocessError):
    return None


def read(path, *fields):
  """Reads results `path`, if any; drops a last line that a kill has cut short.

  It is removed from the file, so that the next result starts a line. Another
  line that is not JSON, or lacks one of the fields, is a `UserError`.
  """
  return multihost.from_first(lambda: _read(path, fields), launch.UserError)


def _read(path, fields):
  if not path.exists():
    return []
  with launch.user_errors(OSError):
    content = path.read_bytes()
  whole = content.rfind(b"\n") + 1
  if whole < len(content):
    os.truncate(path, whole)
  records = []
  for number, line in enumerate(content[:whole].splitlines(), 1):
    try:
      records.append(json.loads(line))
    except (ValueError, RecursionError) as e:
      raise launch.UserError(f"'{path}' line {number} is not JSON: {e}.") from e
    missing = [name for name in fields if not isinstance(records[-1], dict)
               or name not in records[-1]]
    if missing:
      raise launch.UserError(f"'{path}' line {number} is no result of this "
                             f"experiment: it has no {missing[0]!r}.")
  return records


def append(path, record):
  """Appends one line, and returns once it is on the disk."""
  if not multihost.first():
    return
  with preemption.defer_signals(), open(path, "a") as f:
    f.write(json.dumps(record) + "\n")
    f.flush()
    os.fsync(f.fileno())
