"""Normalisation of features (arXiv 1910.07467) and of logits."""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels.cpu import bindings


def rms_norm(x, scale, epsilon, plus_one=False):
  """Divides `x [..., F]` by its root mean square, computed in float32. `scale
  [F]` multiplies afterwards; `plus_one` adds 1 to it. It is not stored so,
  since 16 bits have no room for both; the result is then rounded once."""
  return _rms_norm(x, scale, epsilon=epsilon, plus_one=plus_one)


def _rms_reference(x, scale, *, epsilon, plus_one):
  y = x.astype(jnp.float32)
  y *= jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + epsilon)
  scale = jnp.expand_dims(scale, range(x.ndim - 1))
  if plus_one:
    return (y * (1 + scale.astype(jnp.float32))).astype(x.dtype)
  return y.astype(x.dtype) * scale


_rms_norm = dispatch.on_cpu(
    _rms_reference, bindings.rms_norm,
    fits=lambda x, scale, **_: (
        scale.dtype == x.dtype and bindings.supports_floats(x)))


def log_normalizer(logits, divisor=1.0):
  """Returns largest and log_mass `[..., 1]` of float32 logits `[..., V]`.
  Log-probabilities are `(logits - largest) / divisor - log_mass`; the divisor
  `[]` is the temperature."""
  parts = _log_normalizer(logits, jnp.asarray(divisor, jnp.float32))
  return tuple(x[..., None] for x in parts)


def _softmax_reference(logits, divisor):
  largest = logits.max(axis=-1)
  shares = jnp.exp((logits - largest[..., None]) / divisor)
  return largest, jnp.log(shares.sum(axis=-1))


_log_normalizer = dispatch.on_cpu(
    _softmax_reference, bindings.log_normalizer,
    fits=lambda logits, _: bindings.supports_vocab(logits.shape[-1]))
