"""The sums of a softmax over the vocabulary."""

import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels.cpu import bindings


def log_normalizer(logits, divisor=1.0):
  """Returns what logits are normalised by.

  Log-probabilities are `(logits - largest) / divisor - log_mass`.

  Args:
    logits: `[..., V]` float32.
    divisor: `[]` float32, the temperature.

  Returns:
    largest and log_mass, `[..., 1]` float32.
  """
  found = _log_normalizer(logits, jnp.asarray(divisor, jnp.float32))
  return tuple(x[..., None] for x in found)


def _reference(logits, divisor):
  largest = logits.max(axis=-1)
  shares = jnp.exp((logits - largest[..., None]) / divisor)
  return largest, jnp.log(shares.sum(axis=-1))


_log_normalizer = dispatch.on_cpu(
    _reference, bindings.log_normalizer,
    fits=lambda logits, _: bindings.supports_vocab(logits.shape[-1]))
