"""The only write to a KV cache."""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels import mesh_axes
from decoding_jax.kernels.cpu import bindings

# Axes of a cache, from the end, so that a layer axis may come first.
_ROWS, _KEY_SLOTS, _VALUE_SLOTS = -4, -1, -2


def commit(keys, values, fresh_keys, fresh_values, slots, lengths):
  """Copies slots of a block after the prefix of each row of a cache.

  The native kernel writes a few numbers in place; of 16 bits XLA would convert
  a whole cache to float32 and back.

  Args:
    keys: of the cache, a tuple of `[..., B, H, C, S]`; some of these and of the
      values may be `mesh_axes.SplitSlots`.
    values: of the cache, a tuple of `[..., B, H, S, C]`.
    fresh_keys: of the block, a tuple of `[..., B, H, C, N]`.
    fresh_values: of the block, a tuple of `[..., B, H, N, C]`.
    slots: `[B, K]` int32, slots of the block in the order in which they follow.
    lengths: `[B]` int32, where to; a start beyond S - K is moved back to it.

  Returns:
    keys and values of the cache.
  """
  if not any(map(mesh_axes.is_split, keys + values)):
    return _commit(keys, values, fresh_keys, fresh_values, slots, lengths)
  # Imported here, since one device has no use for it.
  from decoding_jax.kernels import split_slots

  def those(split, arrays, like):
    return tuple(x for x, y in zip(arrays, like)
                 if mesh_axes.is_split(y) == split)

  whole = _commit(*(those(False, *pair) for pair in (
      (keys, keys), (values, values), (fresh_keys, keys),
      (fresh_values, values))), slots, lengths)
  split = iter(split_slots.commit(
      *(those(True, x, keys + values) for x in (
          keys + values, fresh_keys + fresh_values)), slots, lengths))
  return tuple(
      tuple(next(split if mesh_axes.is_split(x) else others) for x in arrays)
      for arrays, others in zip((keys, values), map(iter, whole)))


def _reference(keys, values, fresh_keys, fresh_values, slots, lengths):
  def copy(target, source, axis):
    def row(target, source, slots, length):
      fresh = jnp.take(source, slots, axis=axis)
      return jax.lax.dynamic_update_slice_in_dim(
          target, fresh, length, target.ndim + axis)

    at = target.ndim + _ROWS
    return jax.vmap(row, (at, at, 0, 0), at)(target, source, slots, lengths)

  return (tuple(copy(*x, _KEY_SLOTS) for x in zip(keys, fresh_keys)),
          tuple(copy(*x, _VALUE_SLOTS) for x in zip(values, fresh_values)))


_commit = dispatch.on_cpu(
    _reference, bindings.commit,
    fits=lambda keys, values, *_: bindings.supports_writes(keys + values))
