"""Caches: one length a row, and commit as the only write."""

import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax import types

# Axes from the end, so that layer axes may stand in front.
ROW_AXIS = -4
KEY_SLOTS = -1
VALUE_SLOTS = -2
# Of features, `[B, S, F]`.
FEATURE_SLOTS = -2
# Caches hold a multiple of so many slots: methods whose steps reach differently
# far have the same prefill, which is compiled once for all of them.
_STEP = 32
# The same of more than so many slots. XLA splits long sums on a GPU, and would
# pad a copy of all values where the parts are not equal; a TPU rounds the slots
# of keys up in any case.
_LONG, _LONG_STEP = 768, 128


def init_block(cache: types.Cache, slots: int) -> types.Block:
  """An empty block for the model of a cache.

  Args:
    cache: a cache of that model, of any capacity.
    slots: N.

  Returns:
    A block of zeros.
  """
  def empty(x, axis):
    shape = list(x.shape)
    shape[axis] = slots
    return jax.ShapeDtypeStruct(tuple(shape), x.dtype)

  found = kernels.zeros([*(empty(k, KEY_SLOTS) for k in cache.keys),
                         *(empty(v, VALUE_SLOTS) for v in cache.values),
                         *(empty(f, FEATURE_SLOTS) for f in cache.features)],
                        cache.length)
  keys, values = len(cache.keys), len(cache.keys) + len(cache.values)
  return types.Block(found[:keys], found[keys:values], found[values:])


def commit(cache: types.Cache, block: types.Block, slots,
           count) -> types.Cache:
  """Copies slots of a block after the prefix of each row.

  All K slots are written, whatever the count: what lies after the length is
  masked, and overwritten by the next commit. The caller sees to it that
  `length + K` is within the capacity: beyond it, XLA would move the write
  back over the prefix without a word.

  Args:
    cache: the cache.
    block: fresh keys, values and features.
    slots: `[B, K]` int32, block slots in the order in which they follow.
    count: `[B]` int32, how many of them count.

  Returns:
    The cache, longer by `count`.
  """
  start = cache.length - num_shared(cache)
  keys, values = kernels.commit(cache.keys, cache.values, block.keys,
                                block.values, slots, start)
  features = tuple(_append(x, fresh, slots, start) for x, fresh in zip(
      cache.features, block.features))
  return cache.replace(keys=keys, values=values, length=cache.length + count,
                       features=features)


def _append(target, source, slots, lengths):
  """Copies slots of `[B, N, F]` into `[B, S, F]`, from each row's length on."""
  fresh = kernels.take_along(source, slots[:, :, None], axis=1)
  return jax.vmap(
      lambda x, y, length: jax.lax.dynamic_update_slice_in_dim(x, y, length, 0)
  )(target, fresh, lengths)


def move(block: types.Block, sources, targets) -> types.Block:
  """Copies slots of a block to other slots of it.

  Args:
    block: keys, values and features of N slots.
    sources: `[B, K]` int32, slots that are read.
    targets: `[B, K]` int32, slots that are written, none of them read; those
      that are not below N are left out. Where several are the same, so are
      what is written there.

  Returns:
    The block.
  """
  def moved(x, row_axis, axis):
    def row(x, sources, targets):
      x = jnp.moveaxis(x, axis, 0)
      return jnp.moveaxis(x.at[targets].set(x[sources], mode="drop"), 0, axis)

    return jax.vmap(row, (row_axis, 0, 0), row_axis)(x, sources, targets)

  return types.Block(
      tuple(moved(x, x.ndim + ROW_AXIS, KEY_SLOTS) for x in block.keys),
      tuple(moved(x, x.ndim + ROW_AXIS, VALUE_SLOTS) for x in block.values),
      tuple(moved(x, 0, FEATURE_SLOTS) for x in block.features))


def put_rows(cache: types.Cache, rows, other: types.Cache) -> types.Cache:
  """Writes whole rows, and no others.

  Args:
    cache: a cache of B rows.
    rows: `[R]` int32, where to; those that are not below B are left out.
    other: a cache of R rows of the same model and capacity, and of what they
      share.

  Returns:
    The cache with these rows replaced.
  """
  put = lambda x, y: x.at[..., rows, :, :, :].set(y, mode="drop")
  return types.Cache(jax.tree.map(put, cache.keys, other.keys),
                     jax.tree.map(put, cache.values, other.values),
                     cache.length.at[rows].set(other.length, mode="drop"),
                     tuple(x.at[rows].set(y, mode="drop") for x, y in zip(
                         cache.features, other.features)), other.shared)


def repeat_row(rows: int, tree):
  """Repeats the only row of arrays with rows first, and of caches."""
  def repeat(x):
    if not isinstance(x, types.Cache):
      return jnp.repeat(x, rows, axis=0)
    by_rows = lambda y: jnp.repeat(y, rows, axis=y.ndim + ROW_AXIS)
    return types.Cache(*jax.tree.map(by_rows, (x.keys, x.values)),
                       *jax.tree.map(repeat, (x.length, x.features)))

  return jax.tree.map(repeat, tree, is_leaf=is_cache)


def await_logits(slots, logits):
  """The slots, but not before the logits are known.

  A commit that does not depend on a forward may be made before it: the forward
  then reads from a copy of the whole cache, made for the purpose.

  Args:
    slots: `[B, K]` int32, what will be committed.
    logits: `[B, T, V]`, of the forward that reads the cache.

  Returns:
    `[B, K]` int32, the slots.
  """
  return _await(slots, logits[:, -1, :1])


def await_block(slots, block: types.Block):
  """The same where nobody asks for logits, which are then not computed.

  Args:
    slots: `[B, K]` int32, what will be committed.
    block: of the forward that reads the cache. Any layer reads its part of it
      before the next one's keys are known; what the last one reads has no
      effect on keys and values, but may have one on features.

  Returns:
    `[B, K]` int32, the slots.
  """
  for keys in block.keys:
    layer = (0,) * (keys.ndim + ROW_AXIS)
    slots = _await(slots, keys[layer][:, 0, 0, :1])
  for features in block.features:
    slots = _await(slots, features[:, 0, :1])
  return slots


def _await(slots, values):
  """The slots, but not before values `[B, 1]` are known."""
  # No compiler may take it for granted that there is no NaN.
  return slots + jnp.isnan(values).astype(jnp.int32)


def round_up(slots) -> int:
  """The least capacity that is usual and has room for so many slots."""
  step = _STEP if slots <= _LONG else max(_STEP, _LONG_STEP)
  return -(-slots // step) * step


def capacity(cache: types.Cache) -> int | None:
  """Tokens that a row has room for; None if the model keeps nothing."""
  slots = _num_slots(cache)
  return slots if slots is None else slots + num_shared(cache)


def num_shared(cache: types.Cache) -> int:
  """L, the tokens that are kept once for all rows."""
  return (cache.shared and _num_slots(cache.shared)) or 0


def _num_slots(x: types.Cache | types.Block) -> int | None:
  if x.keys:
    return x.keys[0].shape[KEY_SLOTS]
  if x.values:
    return x.values[0].shape[VALUE_SLOTS]
  return x.features[0].shape[FEATURE_SLOTS] if x.features else None


def is_cache(x) -> bool:
  """Tells whether a node of a tree of arrays is a cache, or is None."""
  return x is None or isinstance(x, types.Cache)
