"""Keeps compiled programs on disk, from which the next start loads them."""

import contextlib
import importlib
import pathlib

import jax

from experiments.app import multihost

# Name of the folder of programs within a folder of results.
FOLDER = "compiled"
# JAX uses the first of these that is installed.
_COMPRESSIONS = ("compression.zstd", "zstandard", "zlib")


def keep(folder):
  """Keeps compiled programs in a folder, for the next start."""
  # Of several processes the first one writes.
  if multihost.first():
    _drop_damaged(pathlib.Path(folder))
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  # Else JAX 0.10 makes the folder's name part of the key of an entry: the
  # folder could not be moved, nor be given as another path.
  jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def _drop_damaged(folder):
  """Removes entries that a kill has cut short."""
  # JAX never replaces an entry: such a one would fail to load at every start.
  # It warns of what can be neither read nor removed, and compiles it again.
  for path in folder.glob("*-cache"):
    with contextlib.suppress(OSError):
      if not _is_whole(path.read_bytes()):
        path.unlink()


def _is_whole(data):
  for name in _COMPRESSIONS:
    try:
      importlib.import_module(name).decompress(data)
      return True
    except Exception:  # A missing module, or errors of three formats.
      continue
  return False
