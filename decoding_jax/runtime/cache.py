"""Caches: one length a row, and commit as the only write."""

import itertools
import math

import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax import types

# Axes of rows and of slots, from the end, so that layer axes may stand in
# front; features count from the beginning.
ROW_AXIS = -4
KEY_SLOTS = -1
VALUE_SLOTS = -2
_AXES = {"keys": (ROW_AXIS, KEY_SLOTS), "values": (ROW_AXIS, VALUE_SLOTS),
         "features": (0, 1)}
# Caches hold a multiple of these slots, so that methods whose steps reach
# differently far share a prefill, which is compiled once for all of them.
_STEP = 32
# The same above `_LONG` slots. XLA splits long sums on a GPU, and would
# pad a copy of all values where the parts are not equal; a TPU rounds the slots
# of keys up in any case.
_LONG, _LONG_STEP = 768, 128


def map_arrays(function, *parts) -> types.Block:
  """Applies a function to each array of caches or blocks of one model. It is
  `(*arrays, row_axis, slot_axis) -> array`, of one array of each, which on a
  mesh may be `kernels.SplitSlots`. Results are keys, values, features."""
  def mapped(name, row_axis, slot_axis):
    return jax.tree.map(lambda x, *others: function(
        x, *others, row_axis % x.ndim, slot_axis % x.ndim),
                        *(getattr(part, name) for part in parts),
                        is_leaf=kernels.is_split)

  return types.Block(**{name: mapped(name, *axes)
                        for name, axes in _AXES.items()})


def init_block(cache: types.Cache, slots: int) -> types.Block:
  """Returns a block of N zeros for the model of a cache."""
  def empty(x, _, slot_axis):
    shape = list(x.shape)
    shape[slot_axis] = slots
    return jax.ShapeDtypeStruct(tuple(shape), x.dtype)

  block = map_arrays(empty, cache)
  if cache.states:
    block = block.replace(features={**block.features, types.UPDATES: (
        jax.tree.map(lambda x: empty(x, 0, 1), cache.states.empty))})
  shapes, structure = jax.tree.flatten(block)
  return structure.unflatten(kernels.zeros(shapes, cache.length))


def whole_pass(lm: types.LanguageModel, params, tokens, mask=None):
  """Returns logits `[B, T, V]` of whole texts `[B, T]`, and their block. `mask
  [T, T]` is what each token sees; None: itself and all before it."""
  (batch, length), empty = tokens.shape, lm.init_cache(len(tokens), 0)
  mask = jnp.tri(length, dtype=bool) if mask is None else mask
  return lm.forward(
      params, tokens, jnp.broadcast_to(jnp.arange(length), tokens.shape), empty,
      init_block(empty, length), 0,
      jnp.broadcast_to(mask, (batch, length, length)))


def commit(cache: types.Cache, block: types.Block, slots,
           count) -> types.Cache:
  """Copies the block slots `[B, K]` after the prefix of each row; `count [B]`
  of them count. All K are written: those after the length are masked, and
  overwritten by the next commit. The caller ensures that `length + K` is within
  the capacity: beyond it XLA would silently write back over the prefix."""
  start = cache.length - num_shared(cache)
  keys, values = kernels.commit(cache.keys, cache.values, block.keys,
                                block.values, slots, start)
  fresh, states = dict(block.features), cache.states
  if states:
    path = jax.tree.map(lambda x: jax.vmap(_take)(x, slots),
                        fresh.pop(types.UPDATES))
    states = states.replace(arrays=states.advance(
        begun_states(cache), path, jnp.broadcast_to(count, start.shape)))
  features = jax.tree.map(
      lambda x, fresh: _append(x, fresh, slots, start), cache.features, fresh)
  return cache.replace(keys=keys, values=values, length=cache.length + count,
                       features=features, states=states)


def begun_states(cache: types.Cache):
  """Returns the arrays of recurrent states, zeros in rows of length 0."""
  return jax.tree.map(lambda x: pick_rows(
      cache.length > 0, x, jnp.zeros_like(x)), cache.states.arrays)


def rewind(cache: types.Cache, length) -> types.Cache:
  """Sets the length `[B]`; raises ValueError for recurrent states."""
  if cache.states:
    raise ValueError("this method sets a cache back to an earlier length, "
                     "which a model with recurrent layers cannot do: another "
                     "method or model is needed.")
  return cache.replace(length=length)


def _append(target, source, slots, lengths):
  """Copies slots of `[B, N, ...]` into `[B, S, ...]`, from the lengths on."""
  def row(target, source, slots, length):
    fresh = _take(source, slots)
    return jax.lax.dynamic_update_slice_in_dim(target, fresh, length, 0)

  return jax.vmap(row)(target, source, slots, lengths)


def _take(source, slots):
  return jnp.take(source, slots, axis=0, mode="clip")


def move(block: types.Block, sources, targets) -> types.Block:
  """Copies slots of a block to others, none of which is read, `[B, K]` each.
  Targets that are not below N are left out. Where several are the same, so must
  be what is written there."""
  def moved(x, row_axis, slot_axis):
    def row(x, sources, targets):
      x = jnp.moveaxis(x, slot_axis - 1, 0)
      return jnp.moveaxis(x.at[targets].set(x[sources], mode="drop"), 0,
                          slot_axis - 1)

    return jax.vmap(row, (row_axis, 0, 0), row_axis)(x, sources, targets)

  return map_arrays(moved, block)


def take_slots(block: types.Block, slots) -> types.Block:
  """Returns a block of some slots `[B, K]` int32 of another one."""
  def take(x, row_axis, slot_axis):
    return jax.vmap(lambda x, at: jnp.take(x, at, axis=slot_axis - 1),
                    (row_axis, 0), row_axis)(x, slots)

  return map_arrays(take, block)


def latest(cache: types.Cache, first: int, window: int) -> types.Cache:
  """Copies the first slots of each row and its newest ones, in order. Where
  slots are split over devices the numbers are rounded up, and up to one slot a
  device less is seen. Raises ValueError for recurrent states."""
  if cache.states:
    raise ValueError("a window of the newest tokens of a model with recurrent "
                     "layers: their states hold all tokens.")
  arrays = jax.tree.leaves(cache, is_leaf=kernels.is_split)
  ways = max([1, *(x.ways for x in arrays if kernels.is_split(x))])
  first, window = (-(-number // ways) * ways for number in (first, window))
  slots = capacity(cache)
  if first + window >= slots:
    return cache
  start = jnp.clip(cache.length - window, first, slots - window)
  # All devices copy equally many.
  start = -(-start // ways) * ways

  def take(x, row_axis, slot_axis, ways=1):
    if kernels.is_split(x):
      return x.replace(array=take(x.array, row_axis, slot_axis, x.ways))

    def row(x, start):
      return jnp.concatenate(
          [jax.lax.slice_in_dim(x, 0, first // ways, axis=slot_axis - 1),
           jax.lax.dynamic_slice_in_dim(x, start // ways, window // ways,
                                        slot_axis - 1)], axis=slot_axis - 1)

    return jax.vmap(row, (row_axis, 0), row_axis)(x, start)

  return with_arrays(cache.replace(length=first + cache.length - start),
                     map_arrays(take, cache))


def put_rows(cache: types.Cache, rows, other: types.Cache) -> types.Cache:
  """Writes whole rows `[R]` of a cache of R rows; rows from B on are left out.
  Both are of the same model and capacity, and of what they share."""
  def put(x, y, row_axis):
    at = (slice(None),) * row_axis + (rows,)
    return jax.tree.map(lambda x, y: x.at[at].set(y, mode="drop"), x, y)

  return _map_rows(put, cache, other).replace(
      length=cache.length.at[rows].set(other.length, mode="drop"),
      shared=other.shared)


def repeat_row(rows: int, tree):
  """Repeats the only row of arrays with rows first, and of caches."""
  def repeat(x):
    if not isinstance(x, types.Cache):
      return jnp.repeat(x, rows, axis=0)
    by_rows = lambda y, row_axis: jnp.repeat(y, rows, axis=row_axis)
    return _map_rows(by_rows, x).replace(length=repeat(x.length))

  return jax.tree.map(repeat, tree, is_leaf=is_cache)


def where(rows, new: types.Block, old: types.Block) -> types.Block:
  """Returns the new arrays of some rows `[B]` bool, the old ones elsewhere."""
  return map_arrays(lambda x, y, row_axis, _: pick_rows(rows, x, y, row_axis),
                    new, old)


def pick_rows(rows, new, old, axis=0):
  """Does the same with two arrays whose rows are along an axis."""
  return jnp.where(jnp.expand_dims(rows, [
      i for i in range(new.ndim) if i != axis]), new, old)


def with_arrays(cache: types.Cache, arrays: types.Block) -> types.Cache:
  """Returns the cache with other keys, values and features."""
  return cache.replace(keys=arrays.keys, values=arrays.values,
                       features=arrays.features)


def take_rows(cache: types.Cache, rows) -> types.Cache:
  """Returns a cache of the rows `[R]` of another one."""
  def take(x, row_axis):
    at = (slice(None),) * row_axis + (rows,)
    return jax.tree.map(lambda x: x[at], x)

  return _map_rows(take, cache).replace(length=cache.length[rows])


def _map_rows(function, *caches) -> types.Cache:
  """Applies `(*arrays, row_axis) -> array` to all arrays of the first one."""
  arrays = map_arrays(lambda *args: function(*args[:-1]), *caches)
  states = jax.tree.map(lambda *args: function(*args, 0),
                        *(cache.states for cache in caches))
  return with_arrays(caches[0], arrays).replace(states=states)


def await_logits(slots, logits):
  """Returns the slots `[B, K]`, but not before the logits are known. A commit
  that does not depend on a forward may be made before it: the forward then
  reads from a copy of the whole cache, made for the purpose."""
  return _await(slots, logits[:, -1, :1])


def await_block(slots, block: types.Block):
  """Returns the slots where nobody asks for logits, which are not computed. Any
  layer reads its part of the cache before the next one's keys are known; what
  the last one reads has no effect on keys and values, but may have one on
  features."""
  for keys in block.keys:
    layer = (0,) * (keys.ndim + ROW_AXIS)
    slots = _await(slots, keys[layer][:, 0, 0, :1])
  for features in jax.tree.leaves(block.features):
    if features.size:
      slots = _await(slots, features.reshape(len(features), -1)[:, :1])
  return slots


def _await(slots, values):
  """The slots, but not before values `[B, 1]` are known."""
  # No compiler may take it for granted that there is no NaN.
  return slots + jnp.isnan(values).astype(jnp.int32)


def round_up(slots) -> int:
  """Returns the least usual capacity with room for `slots`. The devices of a
  layer divide it, since a cache may be split over them."""
  step = math.lcm(_STEP if slots <= _LONG else max(_STEP, _LONG_STEP),
                  *kernels.split_by_compiler().values())
  return -(-slots // step) * step


def capacity(cache: types.Cache) -> int | None:
  """Tokens that a row has room for; None if the model keeps nothing."""
  slots = _num_slots(cache)
  return slots if slots is None else slots + num_shared(cache)


def num_shared(cache: types.Cache) -> int:
  """L, the tokens that are kept once for all rows."""
  return (cache.shared and _num_slots(cache.shared)) or 0


def _num_slots(x: types.Cache | types.Block) -> int | None:
  sizes = jax.tree.leaves(map_arrays(
      lambda x, _, slot_axis: x.shape[slot_axis], x))
  return sizes[0] if sizes else None


def shapes(model: types.LanguageModel) -> types.Cache:
  """Returns the cache of one row and one slot as `jax.ShapeDtypeStruct`."""
  return jax.eval_shape(lambda: model.init_cache(1, 1))


def unused(name: str, names) -> str:
  """Returns a name for features that is not among others, with a number."""
  return next(x for x in itertools.chain([name], map(
      f"{name}_{{}}".format, itertools.count(2))) if x not in names)


def is_cache(x) -> bool:
  """Tells whether a node of a tree of arrays is a cache, or is None."""
  return x is None or isinstance(x, types.Cache)
