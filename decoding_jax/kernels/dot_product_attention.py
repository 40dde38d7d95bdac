"""Attention of fresh tokens to a cache and to each other, in one softmax."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels import linear
from decoding_jax.kernels.cpu import bindings


def attention(q, parts, cap=0.0):
  """Attends to one or several stretches of keys in one softmax.

  Args:
    q: `[B, T, H, G, C]`, scaled; G query heads share a key/value head.
    parts: one or two triples of keys `[B, H, C, S]`, values `[B, H, S, C]` and
      a mask `[B, T or 1, S]` of what is seen. Each query sees something.
    cap: of `soft_cap`, for the scores.

  Returns:
    `[B, T, H, G, C]`, of the type of `q`.
  """
  return _attention(q, tuple(map(tuple, parts)), cap=cap)


def soft_cap(x, cap):
  """Bends numbers into the range of -cap to cap; 0 leaves them unchanged."""
  return cap * jnp.tanh(x / cap) if cap else x


def _reference(q, parts, *, cap):
  attend = functools.partial(_attend, cap)
  forms = {}
  if q.shape[1] * q.shape[3] == 1:
    # A TPU does not use its matrix unit for one query; on a CPU XLA would copy
    # keys and values of 16 bits to float32.
    forms["tpu"] = functools.partial(_attend_twice, cap)
    if q.dtype.itemsize < 4:
      forms["cpu"] = forms["tpu"]
  return dispatch.by_platform(q, parts, default=attend, **forms)


def _attend_twice(cap, q, parts):
  padding = [(0, 0)] * q.ndim
  padding[1] = 0, 1
  parts = [(keys, values, jnp.broadcast_to(
      mask, (mask.shape[0], 2, mask.shape[2]))) for keys, values, mask in parts]
  return _attend(cap, jnp.pad(q, padding), parts)[:, :1]


def _attend(cap, q, parts):
  product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32,
                              precision=linear.precision(q.dtype))
  # Small arrays are transposed, so that keys and values never are.
  q = q.transpose(0, 2, 3, 1, 4)
  queries = [q, *(_apart(q) for _ in parts[1:])]
  scores = jnp.concatenate(
      [jnp.where(mask[:, None, None], soft_cap(
          product("bhgtc,bhcs->bhgts", q, keys), cap), -jnp.inf)
       for q, (keys, _, mask) in zip(queries, parts)], axis=-1)
  weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
  total = weights.sum(axis=-1)
  weights = jnp.split(weights, [parts[0][0].shape[-1]], axis=-1)
  y = sum(product("bhgts,bhsc->bhgtc", w.astype(values.dtype), values)
          for w, (_, values, _) in zip(weights, parts))
  return (y / total[..., None]).astype(q.dtype).transpose(0, 3, 1, 2, 4)


def _apart(q):
  """Returns `q`, on a GPU behind a barrier.

  XLA:GPU would merge two products with the same queries, and copy all keys of a
  cache to have those of the block after them.
  """
  return dispatch.by_platform(
      q, default=lambda q: q, cuda=jax.lax.optimization_barrier,
      rocm=jax.lax.optimization_barrier)


_attention = dispatch.on_cpu(
    _reference, bindings.attention,
    fits=lambda q, parts, *, cap: bindings.supports_floats(parts[0][0]))
