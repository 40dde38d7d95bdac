"""Keeps compiled programs on disk, from which the next start loads them."""

import atexit
import contextlib
import importlib
import json
import os
import pathlib

import jax

from experiments.app import file_digests
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
    atexit.register(_record, pathlib.Path(folder),
                    _drop_damaged(pathlib.Path(folder)))
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  # Else JAX 0.10 makes the folder's name part of the key of an entry: the
  # folder could not be moved, nor be given as another path.
  jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def _drop_damaged(folder):
  """Removes entries cut short or changed; returns digests of the others."""
  # JAX never replaces an entry: one that a kill has cut short would fail to
  # load at every start, and one of another name would be run. It warns of what
  # can be neither read nor removed, and compiles it again.
  known, good = file_digests.read(folder / _DIGESTS), {}
  for path in folder.glob(_ENTRIES):
    with contextlib.suppress(OSError):
      digest = file_digests.of(path)
      if digest != known.get(path.name, digest) or (
          path.name not in known and not _is_whole(path.read_bytes())):
        path.unlink()
      else:
        good[path.name] = digest
  return good


def _record(folder, good):
  """Writes the digests of entries; the `good` ones are known."""
  found = {}
  for path in folder.glob(_ENTRIES):
    with contextlib.suppress(OSError):
      found[path.name] = good.get(path.name) or file_digests.of(path)
  with contextlib.suppress(OSError):
    partial = folder / f"{_DIGESTS}.{os.getpid()}"
    partial.write_text(json.dumps(found))
    partial.replace(folder / _DIGESTS)


def _is_whole(data):
  for name in _COMPRESSIONS:
    try:
      importlib.import_module(name).decompress(data)
      return True
    except Exception:  # A missing module, or errors of three formats.
      continue
  return False
