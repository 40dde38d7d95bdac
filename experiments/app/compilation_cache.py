"""Compiled programs on the disk, which the next start loads."""

import importlib
import pathlib

import jax

from experiments.app import multihost

# What a folder of results calls its folder of programs.
FOLDER = "compiled"
_ENTRIES = "*-cache"
# JAX takes the first of these that there is.
_COMPRESSIONS = ("compression.zstd", "zstandard", "zlib")


def keep(folder):
  """Keeps compiled programs in a folder, for the next start.

  JAX writes an entry where it lies and never replaces it: one that was cut
  short by a kill would be read in vain at each start. It is removed.

  Args:
    folder: it need not exist.
  """
  # Of several processes the first one writes.
  for path in pathlib.Path(folder).glob(_ENTRIES):
    if multihost.first() and not _is_whole(path.read_bytes()):
      path.unlink(missing_ok=True)
  jax.config.update("jax_compilation_cache_dir", str(folder))
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  # JAX 0.10 would make the name of the folder part of what an entry is found
  # by: it could not be moved, nor be given as another path.
  jax.config.update("jax_persistent_cache_enable_xla_caches", "none")


def _is_whole(data):
  for name in _COMPRESSIONS:
    try:
      importlib.import_module(name).decompress(data)
      return True
    except Exception:  # Of a module that is missing, or of three formats.
      continue
  return False
