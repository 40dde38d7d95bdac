"""A folder of results: settings, environment, and one JSON line a result.

    run.json       settings, and the environment of each start
    results.jsonl  a line as soon as a result is there

A run that is killed at any moment goes on where it was, if its main skips what
`read` returns. Of several processes the first one alone reads and writes.
"""

import calendar
import datetime
import errno
import importlib.metadata
import json
import os
import pathlib
import platform
import sys
import time

import jax

try:
  import fcntl
except ImportError:  # Windows has no such locks.
  fcntl = None

from decoding_jax import kernels
from experiments.app import launch
from experiments.app import multihost
from experiments.app import preemption

RUN, RESULTS = "run.json", "results.jsonl"
LOCK = ".lock"
# Files by which this process keeps others from a folder, as long as it runs.
_locks = {}
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_PACKAGES = ("decoding_jax", "flax", "jax", "jaxlib", "numpy")


def open_workdir(workdir, settings, free=(), flag="--workdir"):
  """Makes or reopens a folder of results, and writes its `run.json`.

  Args:
    workdir: folder.
    settings: all that results depend on, as JSON values.
    free: fields that may change from start to start, since they only choose
      which results are computed.
    flag: what the user chooses the folder with.

  Returns:
    The folder as a Path.

  Raises:
    UserError: if the folder holds results of other settings, or another
      process is at work there.
  """
  if not str(workdir):
    raise launch.UserError(f"{flag} is empty: a folder is needed.")
  workdir = pathlib.Path(workdir)
  multihost.from_first(lambda: _open(workdir, settings, free, flag),
                       launch.UserError)
  return workdir


def started_at(workdir) -> datetime.datetime:
  """When results of a folder were begun, so that prompts can tell that date.

  Args:
    workdir: of `open_workdir`, which tells what is wrong with it.

  Returns:
    Local time of the first start; now, if there was none.
  """
  def first_start():
    try:
      start = json.loads((pathlib.Path(workdir) / RUN).read_text())["starts"][0]
      return calendar.timegm(time.strptime(start["time"], _TIME))
    except (OSError, ValueError, TypeError, LookupError):
      return time.time()

  return datetime.datetime.fromtimestamp(multihost.from_first(first_start))


def _loaded(path):
  try:
    return json.loads(path.read_text())
  except ValueError as e:
    raise ValueError(f"'{path}' is damaged: {e}") from e


def _open(workdir, settings, free, flag):
  path = workdir / RUN
  try:
    workdir.mkdir(parents=True, exist_ok=True)
    _lock(workdir)
    record = _loaded(path) if path.exists() else {"starts": []}
    if not isinstance(record, dict) or not isinstance(
        record.get("settings", {}), dict) or "starts" not in record:
      raise ValueError(f"'{path}' is of another program")
  except (OSError, ValueError) as e:
    raise launch.UserError(f"{flag}={workdir} cannot be used: {e}.") from e
  old = record.get("settings", settings)
  found = first_difference(
      *({k: v for k, v in x.items() if k not in free} for x in (old, settings)))
  if found:
    name, before, now = found
    raise launch.UserError(
        f"'{workdir}' has results of {name}={before!r}, not of {now!r}: choose "
        f"another {flag}, or the same settings.")
  record["settings"] = settings
  record["starts"].append(environment())
  save(path, record)


def _lock(workdir):
  """Raises `OSError` if another process is at work in the folder.

  Where a file system has no locks, nobody is kept from anything.
  """
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
    return
  _locks[key] = file


def load(path):
  """The JSON object that `save` wrote; an empty one if there is none.

  Raises:
    UserError: if it cannot be read.
  """
  with launch.user_errors(OSError, ValueError):
    return json.loads(path.read_text()) if path.exists() else {}


def save(path, value):
  """Writes a JSON object: either the whole file appears, or none."""
  partial = path.with_suffix(".partial")
  partial.write_text(json.dumps(value, indent=2) + "\n")
  partial.replace(path)


def first_difference(old, new, prefix=""):
  """(dotted name, old value, new value) of a field that differs, or None."""
  for name in sorted({*old, *new}):
    a, b = old.get(name), new.get(name)
    if isinstance(a, dict) and isinstance(b, dict):
      found = first_difference(a, b, f"{prefix}{name}.")
      if found:
        return found
    elif a != b:
      return prefix + name, a, b
  return None


def environment():
  """What a result may depend on besides its settings."""
  return {
      "time": time.strftime(_TIME, time.gmtime()),
      "arguments": sys.argv[1:],
      "python": platform.python_version(),
      "platform": platform.platform(),
      "cpus": kernels.cores(),
      "native_products": kernels.available(),
      "devices": [d.device_kind for d in jax.devices()],
      "versions": {name: importlib.metadata.version(name)
                   for name in _PACKAGES if _installed(name)},
  }


def _installed(name):
  return any(True for _ in importlib.metadata.Distribution.discover(name=name))


def read(path, *fields):
  """Results that were appended, without a last line cut short by a kill.

  Args:
    path: of the JSON lines; it need not exist. A torn last line is removed, so
      that what is appended next starts a line.
    *fields: that each result has.

  Returns:
    List of dicts.

  Raises:
    UserError: if any other line is not JSON, or no such result.
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
    except ValueError as e:
      raise launch.UserError(f"'{path}' line {number} is not JSON: {e}.") from e
    missing = [name for name in fields if not isinstance(records[-1], dict)
               or name not in records[-1]]
    if missing:
      raise launch.UserError(f"'{path}' line {number} is no result of this "
                             f"experiment: it has no {missing[0]!r}.")
  return records


def append(path, record):
  """Appends one line, which is on the disk when this returns."""
  if not multihost.first():
    return
  with preemption.defer_signals(), open(path, "a") as f:
    f.write(json.dumps(record) + "\n")
    f.flush()
    os.fsync(f.fileno())
