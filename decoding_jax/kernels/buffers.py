"""Arrays, and parts of them."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels.cpu import bindings


def take_along(x, indices, axis):
  """`jnp.take_along_axis` of indices that are all there.

  By default JAX would look for those that are not and fill in NaN, in an
  operation more over all that is taken.

  Args:
    x: any array.
    indices: of as many axes, which broadcast to those of `x`.
    axis: which one is indexed.

  Returns:
    As large as `indices` along the axis.
  """
  return jnp.take_along_axis(x, indices, axis=axis, mode="clip")


def zeros(like, after):
  """Arrays of zeros, on a CPU by one operation.

  Args:
    like: their shapes and types, a tuple.
    after: an array that is there before they are needed; on a CPU they are
      made after it.

  Returns:
    A tuple of arrays.
  """
  return _made(like, after, True)


def empty_like(like, after):
  """Arrays that are written before they are read: zeros, or on a CPU anything.

  Args:
    like: see `zeros`.
    after: see there.

  Returns:
    A tuple of arrays.
  """
  return _made(like, after, False)


def write_slots(targets, sources, start):
  """Writes arrays into others, on a CPU by one operation.

  Args:
    targets: a tuple of `[B, M, ...]`.
    sources: the same, `[B, W, ...]`.
    start: `[]` int32, at which of M they begin, M - W at most.

  Returns:
    A tuple like the targets.
  """
  sources = tuple(x.astype(y.dtype) for x, y in zip(sources, targets))
  form = {"cpu": bindings.put} if bindings.writes(targets + sources) else {}
  return jax.lax.platform_dependent(
      targets, sources, jnp.asarray(start, jnp.int32), default=_put, **form)


def _put(targets, sources, start):
  return tuple(jax.lax.dynamic_update_slice_in_dim(x, y, start, 1)
               for x, y in zip(targets, sources))


def _made(like, after, are_zeros):
  like = tuple(like)
  forms = {}
  if bindings.writes(like):
    forms["cpu"] = functools.partial(bindings.room, like, zeros=are_zeros)
  return jax.lax.platform_dependent(
      after, default=lambda _: tuple(jnp.zeros(x.shape, x.dtype) for x in like),
      **forms)
