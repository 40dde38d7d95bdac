"""Arrays that are made, and parts of arrays that are taken and written."""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels.cpu import bindings


def take_along(x, indices, axis):
  """Returns `jnp.take_along_axis` of indices that are all within the array.

  By default JAX would look for those that are not and fill in NaN, in one more
  operation over all that is taken.

  Args:
    x: any array.
    indices: of as many axes, which broadcast to those of `x`.
    axis: which one is indexed.

  Returns:
    As large as `indices` along the axis.
  """
  return jnp.take_along_axis(x, indices, axis=axis, mode="clip")


def zeros(like, after):
  """Returns arrays of zeros, on a CPU by one operation.

  Args:
    like: their shapes and types, a sequence.
    after: an array that is known before they are needed; on a CPU they are made
      after it.

  Returns:
    A tuple of arrays.
  """
  return _new(after, like=_shapes(like), is_zero=True)


def empty_like(like, after):
  """Returns arrays that are written before they are read.

  Args:
    like: their shapes and types, a sequence.
    after: an array that is known before they are needed; on a CPU they are made
      after it.

  Returns:
    A tuple of arrays: of zeros, or with native kernels of anything.
  """
  return _new(after, like=_shapes(like), is_zero=False)


def write_slots(targets, sources, start):
  """Writes arrays into others, on a CPU by one operation.

  Args:
    targets: a tuple of `[B, M, ...]`.
    sources: a tuple of `[B, W, ...]`.
    start: `[]` int32, at which of M they begin, M - W at most.

  Returns:
    A tuple like the targets.
  """
  sources = tuple(x.astype(y.dtype) for x, y in zip(sources, targets))
  return _write_slots(tuple(targets), sources, jnp.asarray(start, jnp.int32))


def _shapes(like):
  return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like)


def _new_reference(after, *, like, is_zero):
  del after, is_zero
  return tuple(jnp.zeros(x.shape, x.dtype) for x in like)


def _write_reference(targets, sources, start):
  return tuple(jax.lax.dynamic_update_slice_in_dim(x, y, start, 1)
               for x, y in zip(targets, sources))


_new = dispatch.on_cpu(
    _new_reference, bindings.empty_like,
    fits=lambda _, *, like, **__: bindings.supports_writes(like))
_write_slots = dispatch.on_cpu(
    _write_reference, bindings.write_slots,
    fits=lambda targets, sources, _: bindings.supports_writes(
        targets + sources))
