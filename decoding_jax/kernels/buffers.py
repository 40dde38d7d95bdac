"""Arrays that are made, and parts of arrays that are taken and written.

`commit` is the only write to a KV cache.
"""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels import mesh_axes
from decoding_jax.kernels.cpu import bindings

# Axes of a cache, from the end, so that a layer axis may come first.
_ROWS, _KEY_SLOTS, _VALUE_SLOTS = -4, -1, -2


def take_along(x, indices, axis):
  """Returns `jnp.take_along_axis` of indices that are all in bounds. By default
  JAX would fill others with NaN, in one more pass over the result."""
  return jnp.take_along_axis(x, indices, axis=axis, mode="clip")


def zeros(like, after):
  """Returns arrays of zeros like `like`, on a CPU in one operation. There it
  runs once `after`, any array, is known: ahead of a loop it would be copied in
  each iteration."""
  return _new(after, like=_shapes(like), is_zero=True)


def empty_like(like, after):
  """Returns arrays to be written before they are read; see `zeros`."""
  return _new(after, like=_shapes(like), is_zero=False)


def write_slots(targets, sources, start):
  """Writes `sources [B, W, ...]` into `targets [B, M, ...]`. `start []` int32
  is the first of the M slots, M - W at most."""
  sources = tuple(x.astype(y.dtype) for x, y in zip(sources, targets))
  return _write_slots(tuple(targets), sources, jnp.asarray(start, jnp.int32))


def commit(keys, values, fresh_keys, fresh_values, slots, lengths):
  """Copies slots of a block after the prefix of each row of a cache. Keys are
  tuples of `[..., B, H, C, S]`, values of `[..., B, H, S, C]`, of a block with
  N slots. `slots [B, K]` are block slots in order, `lengths [B]` their targets,
  at most S - K. Cache arrays may be `mesh_axes.SplitSlots`."""
  arrays, fresh = keys + values, fresh_keys + fresh_values
  split = [i for i, x in enumerate(arrays) if mesh_axes.is_split(x)]
  if not split:
    return _commit(keys, values, fresh_keys, fresh_values, slots, lengths)
  # Imported here, since one device has no use for it.
  from decoding_jax.kernels import split_slots
  committed = dict(zip(split, split_slots.commit(
      [arrays[i] for i in split], [fresh[i] for i in split], slots, lengths)))
  for i in range(len(arrays)):
    if i not in committed:  # No kernel runs on a mesh that splits layers.
      axis = _KEY_SLOTS if i < len(keys) else _VALUE_SLOTS
      committed[i] = _copied(axis, arrays[i], fresh[i], slots, lengths)
  committed = tuple(committed[i] for i in range(len(arrays)))
  return committed[:len(keys)], committed[len(keys):]


def _shapes(like):
  return tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like)


def _copied(axis, target, source, slots, lengths):
  def row(target, source, slots, length):
    # XLA converts a whole cache of 16 bits to float32 and back for this.
    return jax.lax.dynamic_update_slice_in_dim(
        target, jnp.take(source, slots, axis=axis), length, target.ndim + axis)

  rows = target.ndim + _ROWS
  return jax.vmap(row, (rows, rows, 0, 0), rows)(target, source, slots, lengths)


def _commit_reference(keys, values, fresh_keys, fresh_values, slots, lengths):
  return tuple(
      tuple(_copied(axis, *pair, slots, lengths) for pair in zip(*arrays))
      for axis, *arrays in ((_KEY_SLOTS, keys, fresh_keys),
                            (_VALUE_SLOTS, values, fresh_values)))


_new = dispatch.on_cpu(
    lambda after, *, like, is_zero: tuple(
        jnp.zeros(x.shape, x.dtype) for x in like), bindings.empty_like,
    fits=lambda _, *, like, **__: bindings.supports_writes(like))
_write_slots = dispatch.on_cpu(
    lambda targets, sources, start: tuple(
        jax.lax.dynamic_update_slice_in_dim(x, y, start, 1)
        for x, y in zip(targets, sources)), bindings.write_slots,
    fits=lambda targets, sources, _: bindings.supports_writes(
        targets + sources))
_commit = dispatch.on_cpu(
    _commit_reference, bindings.commit,
    fits=lambda keys, values, *_: bindings.supports_writes(keys + values))
