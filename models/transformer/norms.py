"""Normalisation by the root of the mean square (arXiv 1910.07467)."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels.cpu import bindings


def rms(x, scale, epsilon, plus_one=False):
  """Scales features by the inverse of the root of their mean square.

  Args:
    x: `[..., F, n]`; it is computed in float32.
    scale: `[F, 1]`.
    epsilon: is added to the mean.
    plus_one: whether one more than the scale is meant. There is no place for
      that in 16 bits, so that it is rounded once, at the end.

  Returns:
    Of the shape and type of `x`.
  """
  plain = functools.partial(_plain, epsilon, plus_one)
  if not (bindings.reads(x) and scale.dtype == x.dtype):
    return plain(x, scale)
  return jax.lax.platform_dependent(
      x, scale, default=plain,
      cpu=functools.partial(_natively, epsilon, plus_one))


def _plain(epsilon, plus_one, x, scale):
  y = x.astype(jnp.float32)
  y *= jax.lax.rsqrt(jnp.mean(y * y, axis=-2, keepdims=True) + epsilon)
  scale = jnp.expand_dims(scale, range(x.ndim - scale.ndim))
  if plus_one:
    return (y * (1 + scale.astype(jnp.float32))).astype(x.dtype)
  return y.astype(x.dtype) * scale


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _natively(epsilon, plus_one, x, scale):
  return bindings.rms_norm(x, scale[:, 0], epsilon, plus_one)


@_natively.defjvp
def _slopes(epsilon, plus_one, primals, tangents):
  return jax.jvp(functools.partial(_plain, epsilon, plus_one), primals,
                 tangents)
