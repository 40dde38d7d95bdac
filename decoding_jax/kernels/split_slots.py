"""KV caches whose slots are split over the devices of a layer.

Of n devices (`mesh_axes.split_by_compiler`), g = gcd(H, n) have different ones
of the H key/value heads, and s = n / g the same heads of different slots:
device h s + j has slots j, j + s, j + 2 s, ... of the h-th part of the heads.
Each attends to its own slots, and attentions are merged by their log-sum-exp.

Slots are dealt out in turn so that all devices read equally many, however short
a text is. `mesh_axes.SplitSlots` marks this order: other code fails on it.
"""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from decoding_jax.kernels import mesh_axes

_SAME = PartitionSpec()


def zeros(shape, dtype, axis):
  """Returns empty keys or values, split over the devices of a layer. `axis` is
  that of the slots, from the end. `SplitSlots`; or an array where heads alone
  are split, or s does not divide S."""
  sizes, layout = list(shape), mesh_axes.layout_of(shape[mesh_axes.HEADS])
  if not sizes[axis] or sizes[axis] % layout.ways:
    return jnp.zeros(shape, dtype)
  sizes[mesh_axes.HEADS] *= layout.ways
  sizes[axis] //= layout.ways
  array = jnp.zeros(sizes, dtype)
  if layout.number > 1:
    array = jax.lax.with_sharding_constraint(array, _of_heads(array, layout))
  return array if layout.ways == 1 else mesh_axes.SplitSlots(
      array, layout.ways, axis)


def commit(targets, sources, slots, lengths):
  """Copies slots of a block into caches: each device writes its own ones.
  `targets` are `SplitSlots`, `sources` the keys or values of a block, `slots
  [B, K]` and `lengths [B]` as in `kernels.commit`."""
  layout = mesh_axes.layout_of(targets[0].shape[mesh_axes.HEADS])
  arrays = [target.array for target in targets]
  specs = [_of_heads(array, layout) for array in arrays]

  def own(arrays, sources, slots, lengths):
    return [_commit(layout, target.axis, *pair, slots, lengths)
            for target, *pair in zip(targets, arrays, sources)]

  written = jax.shard_map(
      own, in_specs=(specs, _SAME, _SAME, _SAME), out_specs=specs,
      axis_names={layout.axis}, check_vma=False)(
          arrays, sources, slots, lengths)
  return [target.replace(array=array)
          for target, array in zip(targets, written)]


def _commit(layout, axis, target, source, slots, lengths):
  """Returns a device's part of one array after a commit."""
  heads, first = layout.position()
  count, there = slots.shape[1], target.shape[axis]
  number = min(-(-count // layout.ways), there)
  source = _part(source, heads, target.shape[mesh_axes.HEADS], mesh_axes.HEADS)

  def row(target, source, slots, length):
    length = jnp.minimum(length, layout.ways * there - count)
    start = jnp.minimum(_before(length, layout, first), there - number)
    # Which one of the K slots each of the next ones of this device is, if any.
    order = (start + jnp.arange(number)) * layout.ways + first - length
    fresh = jnp.take(source, slots[jnp.clip(order, 0, count - 1)], axis=axis)
    old = jax.lax.dynamic_slice_in_dim(target, start, number, axis)
    is_new = (order >= 0) & (order < count)
    shape = [1] * target.ndim
    shape[axis] = number
    return jax.lax.dynamic_update_slice_in_dim(
        target, jnp.where(is_new.reshape(shape), fresh, old), start, axis)

  rows = target.ndim + mesh_axes.HEADS - 1
  return jax.vmap(row, (rows, rows, 0, 0), rows)(target, source, slots, lengths)


def attend(attention, q, parts):
  """Attends to stretches of keys, each device to its own slots of them.
  `attention(q [B, T, H, G, C], parts)` returns a pair of
  `dot_product_attention.merge`. It is called for the heads and slots of a
  device, where a query may see nothing."""
  shape, layout = q.shape, mesh_axes.layout_of(q.shape[2])
  # Else all devices have all queries, as in a draft model that is not split.
  divides = not shape[2] * shape[3] % layout.number
  of_queries = PartitionSpec(None, None, layout.axis) if divides else _SAME
  arrays, specs = zip(*(_arrays(part, layout) for part in parts))

  def own(q, arrays):
    q = (_gathered if divides else _heads)(layout, q, shape)
    pair = attention(q, [_own_part(layout, part, own)
                         for part, own in zip(parts, arrays)])
    return _merged(layout, pair, shape, divides)

  if divides:
    q = q.reshape(*shape[:2], layout.number, -1, shape[4])
  return jax.shard_map(
      own, in_specs=(of_queries, specs), out_specs=of_queries,
      axis_names={layout.axis}, check_vma=False)(q, arrays).reshape(
          *shape[:4], -1)


def together(parts):
  """Keeps the compiler from splitting keys and values where slots can be split.
  It would split them by heads, as far as that goes, and what they are computed
  from: where a cache of them is then attended to, they would be gathered."""
  whole = lambda x: jax.lax.with_sharding_constraint(x, _SAME)
  return tuple((whole(keys), whole(values), *seen)
               for keys, values, *seen in parts)


def _gathered(layout, q, shape):
  """Gathers the queries of a device's heads, of which it has some."""
  q = jax.lax.all_gather(q, layout.axis, axis_index_groups=layout.groups(),
                         axis=2, tiled=True)
  return q.reshape(*shape[:2], -1, *shape[3:])


def _heads(layout, q, shape):
  """Returns the queries of a device's heads, from all heads' queries."""
  size = shape[2] * layout.ways // layout.number
  return _part(q, layout.position()[0], size, 2)


def _merged(layout, pair, shape, divides):
  """Merges `pair` over the devices that have the same heads. Returns
  `[B, T, 1, H G / n, C]` if n `divides` the queries, or `[B, T, H, G, C]`."""
  y, log_sum = pair
  log_sums = jax.lax.all_gather(log_sum, layout.axis,
                                axis_index_groups=layout.groups())
  share = jnp.exp(log_sum - jax.nn.logsumexp(log_sums, axis=0))
  y = (share[..., None] * y).transpose(0, 3, 1, 2, 4)
  if divides:
    y = y.reshape(*shape[:2], layout.ways, -1, y.shape[-1])
    return jax.lax.psum_scatter(
        y, layout.axis, axis_index_groups=layout.groups(),
        scatter_dimension=2, tiled=True)
  heads = layout.position()[0] * y.shape[2]
  return jax.lax.psum(jax.lax.dynamic_update_slice_in_dim(
      jnp.zeros((*shape[:4], y.shape[-1]), y.dtype), y, heads, 2), layout.axis)


def _arrays(part, layout):
  keys, values, *seen = part
  if mesh_axes.is_split(keys):
    return (keys.array, values.array, seen), (
        _of_heads(keys, layout), _of_heads(values, layout), _SAME)
  return (keys, values, seen), (_SAME, _SAME, _SAME)


def _own_part(layout, part, own):
  keys, values, (mask, *span) = own
  heads, first = layout.position()
  if mesh_axes.is_split(part[0]):
    mask = mask.reshape(*mask.shape[:2], -1, layout.ways)
    mask = jax.lax.dynamic_index_in_dim(mask, first, 3, keepdims=False)
    own_end = lambda end: None if end is None else _before(end, layout, first)
    return keys, values, mask, *(x._replace(
        stop=own_end(x.stop), start=own_end(x.start)) for x in span)
  # Of a block it has consecutive slots: some after the last one are not seen.
  size = -(-mask.shape[-1] // layout.ways)

  def share(x, axis):
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, layout.ways * size - x.shape[axis])
    return _part(jnp.pad(x, widths), first, size, axis)

  keys, values = (_part(x, heads, x.shape[mesh_axes.HEADS] * layout.ways //
                        layout.number, mesh_axes.HEADS) for x in (keys, values))
  return share(keys, -1), share(values, -2), share(mask, -1)


def _before(end, layout, first):
  """Returns how many slots of a device, from `first` on, are before an end."""
  return -((first - end) // layout.ways)


def _part(x, index, size, axis):
  return jax.lax.dynamic_slice_in_dim(x, index * size, size, axis)


def _of_heads(x, layout):
  return PartitionSpec(*(None,) * (x.ndim + mesh_axes.HEADS), layout.axis)
