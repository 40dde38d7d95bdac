"""Random keys and numbers, of which a step of decoding needs many.

Equal to `jax.random` for keys and uniforms: Threefry-2x32 with 20 rounds
(Salmon et al. 2011), as plain arithmetic that fuses with its consumers, while
JAX's generator on a CPU is a loop through memory.
"""

import math

import jax
import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels.cpu import bindings

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
THREEFRY = "threefry2x32"


def fold_in(key, number):
  if not is_threefry(key):
    return jax.random.fold_in(key, number)
  return _key(threefry_hashes(key, jnp.asarray(number, jnp.uint32)))


def split(key, count: int = 2):
  if not is_threefry(key):
    return jax.random.split(key, count)
  return _key(_first_hashes(key, count))


def uniform(key, shape):
  """Returns float32 in [0, 1), multiples of 2^-23."""
  if not is_threefry(key):
    return jax.random.uniform(key, shape, jnp.float32)
  words = _first_hashes(key, math.prod(shape))
  words = (words[:, 0] ^ words[:, 1]).reshape(shape)
  return (words >> 9).astype(jnp.float32) * 2.0**-23


def gumbel(key, size: int):
  """Draws standard Gumbels `[size]` float32. Large ones, which win, are exact
  to the last digit up to 22; JAX's end at 16.6."""
  if not is_threefry(key):
    return jax.random.gumbel(key, (size,), jnp.float32)
  return -jnp.log(exponential(bits(key, size)))


def is_threefry(key) -> bool:
  return str(jax.random.key_impl(key)) == THREEFRY


def exponential(words):
  """Returns positive, finite exponentials of uniform uint32 words."""
  # The smallest is half a unit, so that small ones keep all their digits.
  uniform = (words.astype(jnp.float32) + 0.5) * 2.0**-32
  # Clamp below 1 so that no value is inf: a token that holds all the
  # probability must still win.
  return -jnp.log1p(-jnp.minimum(uniform, 1 - 2.0**-24))


def bits(key, size: int):
  """Returns random words `[size]` uint32 of a key of Threefry. The first halves
  of the hashes of 0, 1, ... come first, then the second ones."""
  half = (size + 1) // 2
  words = threefry(jax.random.key_data(key), jnp.arange(half, dtype=jnp.uint32),
                   jnp.zeros(half, jnp.uint32))
  return jnp.concatenate(words)[:size]


def bits_at(key, size: int, places):
  """Returns the words of `bits(key, size)` at `places [...]` uint32."""
  half = jnp.uint32((size + 1) // 2)
  first = places < half
  words = threefry(jax.random.key_data(key),
                   jnp.where(first, places, places - half),
                   jnp.zeros_like(places))
  return jnp.where(first, *words)


@jax.jit  # Traced once for all callers.
def threefry(key, first, second):
  """Hashes pairs of words `[...]` under `key [2]`, all uint32, to pairs."""
  keys = key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY)
  first, second = first + keys[0], second + keys[1]
  for i in range(5):
    for distance in _ROTATIONS[i % 2]:
      first = first + second
      second = (second << distance) | (second >> (32 - distance))
      second = second ^ first
    first = first + keys[(i + 1) % 3]
    second = second + keys[(i + 2) % 3] + jnp.uint32(i + 1)
  return first, second


def threefry_hashes(key, numbers):
  """Returns hashes `[..., 2]` of `(0, number)`, `numbers [...]` uint32."""
  return _hashes(jax.random.key_data(key), numbers)


def _first_hashes(key, count):
  return _hashes_of_first(jax.random.key_data(key), count=count)


def _key(words):
  return jax.random.wrap_key_data(words, impl=THREEFRY)


def _reference(key, numbers):
  return jnp.stack(threefry(key, jnp.zeros_like(numbers), numbers), axis=-1)


_hashes = dispatch.on_cpu(_reference, bindings.threefry_hashes,
                          fits=lambda *_: bindings.available())
_hashes_of_first = dispatch.on_cpu(
    lambda key, *, count: _reference(key, jnp.arange(count, dtype=jnp.uint32)),
    bindings.first_threefry_hashes,
    fits=lambda _, *, count: count > 0 and bindings.available())
