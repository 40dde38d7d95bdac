"""Keeps compiled programs on disk, from which the next start loads them."""

import atexit
import contextlib
import hashlib
import importlib
import json
import os
import pathlib

import jax

from experiments.app import multihost

# Name of the folder of programs within a folder of results.
FOLDER = "compiled"
_ENTRIES, _DIGESTS = "*-cache", "digests.json"
# JAX uses the first of these that is installed.
_COMPRESSIONS = ("compression.zstd", "zstandard", "zlib")


def keep(folder):
  """Keeps compiled programs in a folder, for the next start."""
  # Of several processes the first one writes.
  if multihost.first():
    _drop_damaged(pathlib.Path(folder))
    atexit.register(_record, pathlib.Path(folder))
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  # Else JAX 0.10 makes the folder's name part of the key of an entry: the
  # folder could not be moved, nor be given as another path.
  jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def _drop_damaged(folder):
  """Removes entries that are cut short, or have changed since `_record`."""
  # JAX never replaces an entry: one that a kill has cut short would fail to
  # load at every start, and one of another name would be run. It warns of what
  # can be neither read nor removed, and compiles it again.
  known = _known(folder)
  for path in folder.glob(_ENTRIES):
    with contextlib.suppress(OSError):
      data = path.read_bytes()
      if known.get(path.name, _digest(data)) != _digest(data) or (
          path.name not in known and not _is_whole(data)):
        path.unlink()


def _record(folder):
  """Writes the digests of entries, of which some may be new."""
  known, found = _known(folder), {}
  for path in folder.glob(_ENTRIES):
    with contextlib.suppress(OSError):
      found[path.name] = known.get(path.name) or _digest(path.read_bytes())
  if found != known:
    with contextlib.suppress(OSError):
      partial = folder / f"{_DIGESTS}.{os.getpid()}"
      partial.write_text(json.dumps(found))
      partial.replace(folder / _DIGESTS)


def _known(folder):
  try:
    found = json.loads((folder / _DIGESTS).read_text())
  except (OSError, ValueError, RecursionError):
    return {}
  return found if isinstance(found, dict) else {}


def _digest(data):
  return hashlib.sha256(data).hexdigest()


def _is_whole(data):
  for name in _COMPRESSIONS:
    try:
      importlib.import_module(name).decompress(data)
      return True
    except Exception:  # A missing module, or errors of three formats.
      continue
  return False
