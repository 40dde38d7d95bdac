"""Normalisation by the root mean square (arXiv 1910.07467)."""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels.cpu import bindings


def rms_norm(x, scale, epsilon, plus_one=False):
  """Divides features by their root mean square, computed in float32.

  Args:
    x: `[..., F]`.
    scale: `[F]`, what they are multiplied by afterwards.
    epsilon: added to the mean square.
    plus_one: whether one is added to the scale. It is not stored so, since 16
      bits have no room for both; the result is then rounded once, at the end.

  Returns:
    Of the shape and type of `x`.
  """
  return _rms_norm(x, scale, epsilon=epsilon, plus_one=plus_one)


def _reference(x, scale, *, epsilon, plus_one):
  y = x.astype(jnp.float32)
  y *= jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + epsilon)
  scale = jnp.expand_dims(scale, range(x.ndim - 1))
  if plus_one:
    return (y * (1 + scale.astype(jnp.float32))).astype(x.dtype)
  return y.astype(x.dtype) * scale


_rms_norm = dispatch.on_cpu(
    _reference, bindings.rms_norm,
    fits=lambda x, scale, **_: (
        scale.dtype == x.dtype and bindings.supports_floats(x)))
