"""Digests of a model's parameters, which detect changed bytes.

A digest is the sum, modulo 2**32, of a hash of each number's bits and index. It
changes with any one number, and can be summed by parts, over devices and hosts.
It detects decay, not forgery. `python -m models.checkpoints <folder> ...` adds
digests to models saved without.
"""

import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from models import transformer
from models.folders import atomic
from models.folders import json_files

FILE = "digests.json"
# Odd numbers, so that each step is a bijection of 32 bits.
_INDEX_FACTOR, _FIRST, _SECOND = (np.uint32(x) for x in (
    0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D))
_SHIFT = np.uint32(15)
# Numbers that are hashed at once; they and their hashes stay in a CPU's cache.
_CHUNK = 1 << 15
_FIELD = json_files.Field(dict, items=json_files.Field(str, 8, 8))


def of(x) -> str:
  """Returns the digest of an array of floats, 8 hexadecimal digits. Of NumPy,
  or of JAX on any devices of any hosts."""
  on_cpu = isinstance(x, np.ndarray) or (
      x.is_fully_addressable and len(x.devices()) == 1
      and next(iter(x.devices())).platform == "cpu")
  digest = _on_host(np.asarray(x)) if on_cpu else int(_on_devices(x))
  return f"{digest:08x}"


def of_all(params) -> dict[str, str]:
  """Returns digests of a tree of parameters by their names."""
  return {transformer.param_name(key): of(leaf)
          for key, leaf in jax.tree_util.tree_leaves_with_path(params)}


def read(folder) -> dict[str, str] | None:
  """Reads digests by names of parameters; None if a model was saved without."""
  path = pathlib.Path(folder) / FILE
  if not path.is_file():
    return None
  digests = json_files.read(path)
  with json_files.naming(path):
    return json_files.check("digests", digests, _FIELD)


def check(folder, digests: dict[str, str], name: str, x) -> None:
  """Raises ValueError if a parameter, in its stored type, has changed."""
  if name not in digests:
    raise ValueError(f"'{pathlib.Path(folder) / FILE}': parameter {name} must "
                     "be given.")
  digest = of(x)
  if digest != digests[name]:
    raise ValueError(f"'{folder}': parameter {name} is damaged: its digest is "
                     f"{digest}, but {FILE} has {digests[name]}.")


def write(folder, digests: dict[str, str]) -> None:
  """Writes digests by names of parameters."""
  atomic.write_json(pathlib.Path(folder) / FILE, digests)


def _on_host(x):
  bits = np.ascontiguousarray(x).reshape(-1)
  bits = bits.view(f"uint{8 * bits.dtype.itemsize}")
  places = np.arange(_CHUNK, dtype=np.uint32) * _INDEX_FACTOR
  digest = 0
  for start in range(0, len(bits), _CHUNK):
    part = bits[start:start + _CHUNK].astype(np.uint32)
    part += places[:len(part)]
    part += np.uint32(start * int(_INDEX_FACTOR) % 2**32)
    digest += int(_hashed(part).sum(dtype=np.uint64))
  return digest % 2**32


@jax.jit
def _on_devices(x):
  bits = jax.lax.bitcast_convert_type(x, f"uint{8 * x.dtype.itemsize}")
  index = jnp.zeros(x.shape, jnp.uint32)
  for axis in range(x.ndim):
    stride = np.uint32(math.prod(x.shape[axis + 1:]) % 2**32)
    index += stride * jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
  return _hashed(bits.astype(jnp.uint32) + index * _INDEX_FACTOR).sum(
      dtype=jnp.uint32)


def _hashed(x):
  """Returns a bijection of 32 bits of each number of uint32."""
  if isinstance(x, np.ndarray):  # Without a copy: twice as fast.
    x *= _FIRST
    x ^= x >> _SHIFT
    x *= _SECOND
    return x
  x *= _FIRST
  return (x ^ (x >> _SHIFT)) * _SECOND
