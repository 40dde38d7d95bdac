"""The most probable tokens, and tokens drawn without replacement."""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.kernels import dispatch
from decoding_jax.kernels import random
from decoding_jax.kernels.cpu import bindings

# Tokens of a block of `top_k`, and blocks for each token that is looked for,
# from which on they pay.
_BLOCK = 128
_LEAST_BLOCKS = 8


def gumbel_top_k(key, log_probs, k):
  """Does `vocabulary.gumbel_top_k` of a vocabulary in one part."""
  return _gumbel_top_k(key, log_probs, k=k)


def top_k(values, k):
  """Returns the k largest values `[..., k]` of `[..., V]`, and their indices.
  Of equal ones the first comes first. Of a large vocabulary only the k blocks
  with the largest maxima are searched: on a CPU in half of the time or less."""
  size = values.shape[-1]
  number = -(-size // _BLOCK)
  if number < _LEAST_BLOCKS * k:
    return jax.lax.top_k(values, k)
  spare = [(0, 0)] * (values.ndim - 1) + [(0, number * _BLOCK - size)]
  blocks = jnp.pad(values, spare, constant_values=-jnp.inf).reshape(
      *values.shape[:-1], number, _BLOCK)
  # In their order, so that the first of equal values comes first.
  chosen = jnp.sort(jax.lax.top_k(blocks.max(axis=-1), k)[1], axis=-1)
  kept = buffers.take_along(blocks, chosen[..., None], axis=-2)
  best, at = jax.lax.top_k(kept.reshape(*values.shape[:-1], k * _BLOCK), k)
  size = jnp.int32(_BLOCK)
  block, offset = jax.lax.div(at, size), jax.lax.rem(at, size)
  return best, buffers.take_along(chosen, block, axis=-1) * _BLOCK + offset


def _reference(key, log_probs, *, k):
  return tuple(top_k(log_probs + random.gumbel(key, len(log_probs)), k))


def _kernel(key, log_probs, *, k):
  return bindings.gumbel_top_k(jax.random.key_data(key), log_probs, k)


_gumbel_top_k = dispatch.on_cpu(
    _reference, _kernel, fits=lambda key, log_probs, **_: (
        random.is_threefry(key) and bindings.supports_vocab(len(log_probs))))
