"""Keeps compiled programs on disk, from which the next start loads them."""

import importlib
import pathlib

import jax

from experiments.app import multihost

# Name of the folder of programs within a folder of results.
FOLDER = "compiled"
_ENTRIES = "*-cache"
# JAX uses the first of these that is installed.
_COMPRESSIONS = ("compression.zstd", "zstandard", "zlib")


def keep(folder):
  """Keeps compiled programs in a folder, for the next start."""
  # JAX never replaces an entry that a kill has cut short, which would fail to
  # load at every start. Of several processes the first one writes.
  for path in pathlib.Path(folder).glob(_ENTRIES):
    if multihost.first() and path.is_file() and not _is_whole(
        path.read_bytes()):
      path.unlink(missing_ok=True)
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  # Else JAX 0.10 makes the folder's name part of the key of an entry: the
  # folder could not be moved, nor be given as another path.
  jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def _is_whole(data):
  for name in _COMPRESSIONS:
    try:
      importlib.import_module(name).decompress(data)
      return True
    except Exception:  # A missing module, or errors of three formats.
      continue
  return False
