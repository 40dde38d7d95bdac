"""Attention of fresh tokens to a cache and to each other, in one softmax.

Attentions to several stretches of keys are merged by their log-sum-exp, so that
scores of a cache never lie in an accelerator's memory.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from decoding_jax.kernels import dispatch
from decoding_jax.kernels import linear
from decoding_jax.kernels import mesh_axes
from decoding_jax.kernels.cpu import bindings

# Slots whose scores are in memory at once on a GPU.
_SLOTS = 512
# From this many queries on, a TPU keeps no scores of a block in memory either.
_MANY = 128
# Scores that a TPU has in the memory of a core in any case.
_FEW = 2**16
# The score of what is not seen where nothing may be; no difference is NaN.
_LOW = -1e30
# The axis of rows, from the end: an axis of layers may come first.
_ROWS = -4


class Span(NamedTuple):
  """Slots that are seen, from `start` to before `stop`."""
  stop: jax.Array  # `[B]` int32
  start: jax.Array | None = None  # `[B, T]` int32; None for 0
  # `[]` int32, of keys and values with an axis of layers in front; None without
  layer: jax.Array | None = None


def attention(q, parts, cap=0.0):
  """Attends to one or several stretches of keys in one softmax.

  Args:
    q: `[B, T, H, G, C]`, scaled; G query heads share a key/value head. Channels
      after the keys' are scored with the values (latent attention).
    parts: tuples of keys `[B, H, C, S]`, values `[B, H, S, C]` and a mask
      `[B, T or 1, S]` of what is seen. Each query sees something. Then, where
      it is known, the `Span` of the mask: such a part, of a cache, is read
      blockwise, and of a stack of layers where it lies. Keys and values of a
      part may be of one row, `[1, H, C, S]`, which all rows share, see
      `_of_all_rows`; or they may be `mesh_axes.SplitSlots`, where none are
      shared.
    cap: of `soft_cap`, for the scores.

  Returns:
    `[B, T, H, G, C]` with the channels of the values, of the type of `q`.
  """
  parts = tuple(map(tuple, parts))
  if mesh_axes.layout_of(q.shape[2]).ways > 1:
    # Imported here, since one device has no use for it.
    from decoding_jax.kernels import split_slots
    if any(mesh_axes.is_split(part[0]) for part in parts):
      return split_slots.attend(functools.partial(_own, cap), q,
                                parts).astype(q.dtype)
    parts = split_slots.together(parts)
  is_shared = [part[0].shape[_ROWS] < len(q) for part in parts]
  pairs = [_of_all_rows(q, part, cap)
           for part, shared in zip(parts, is_shared) if shared]
  own = tuple(part for part, shared in zip(parts, is_shared) if not shared)
  # What is merged is rounded afterwards.
  own_dtype = {} if pairs else {"dtype": q.dtype}
  pairs.append(_attention(q, own, cap=cap, **own_dtype))
  return (merge(pairs) if pairs[1:] else pairs[0])[0].astype(q.dtype)


def _of_all_rows(q, part, cap):
  """Attends to keys of one row `[1, H, C, S]` by the queries of all of them.
  They are queries of one row: products of matrices, which read each key once
  (Juravsky et al. 2024, "Hydragen", arXiv 2402.05099, section 3.2). A query may
  see nothing."""
  keys, values, mask, span = (*part, None)[:4]
  together = lambda x: None if x is None else x.reshape(
      1, -1, *x.shape[2:])
  mask = together(mask)
  seen = mask.any(axis=-1)
  # No form has to know queries that see nothing: they see the first slot.
  mask |= ~seen[..., None] & (jnp.arange(mask.shape[-1]) == 0)[None, None]
  if span is not None:
    span = span._replace(start=together(span.start))
  y, log_sum = _attention(together(q), ((keys, values, mask, span),), cap=cap)
  log_sum = jnp.where(seen[..., None, None], log_sum, _LOW)
  return y.reshape(*q.shape[:-1], -1), log_sum.reshape(q.shape[:-1])


def soft_cap(x, cap):
  """Bends numbers into the range of -cap to cap; 0 leaves them unchanged."""
  return cap * jnp.tanh(x / cap) if cap else x


def merge(attentions):
  """Merges attentions of the same queries to different slots.

  Each is a pair of `[..., C]` and `[...]`, both float32: the attention to some
  slots, and the logarithm of the sum of the exponentials of their scores.
  """
  ys, log_sums = zip(*attentions)
  largest = functools.reduce(jnp.maximum, log_sums)
  shares = [jnp.exp(log_sum - largest) for log_sum in log_sums]
  total = sum(shares)
  y = sum(share[..., None] * y for share, y in zip(shares, ys))
  return y / total[..., None], largest + jnp.log(total)


def _reference(q, parts, *, cap, dtype=jnp.float32):
  attend = functools.partial(_attend, cap)
  forms = {}
  if q.shape[1] * q.shape[3] == 1:
    # A TPU does not use its matrix unit for one query; on a CPU XLA would copy
    # keys and values of 16 bits to float32.
    forms["tpu"] = functools.partial(_attend_twice, cap)
    if q.dtype.itemsize < 4:
      forms["cpu"] = forms["tpu"]
  forms |= {platform: dispatch.with_derivatives_of(
      attend, functools.partial(_attend_merged, cap, of_prefix))
            for platform, of_prefix in _of_prefix(q, parts).items()}
  y, log_sums = dispatch.by_platform(q, parts, default=attend, **forms)
  return y.astype(dtype), log_sums


def _own(cap, q, parts):
  """Attends to the slots that a device has of a cache and a block."""
  forms = {platform: functools.partial(_pair, cap, of_prefix)
           for platform, of_prefix in _of_prefix(q, parts).items()}
  return dispatch.by_platform(
      q, parts, default=functools.partial(_pair, cap, None), **forms)


def _of_prefix(q, parts):
  """Returns how to attend to a part with a span, by platform."""
  if not any(map(_span, parts)):
    return {}
  forms = {}
  scores = q.size // q.shape[-1] * sum(part[0].shape[-1] for part in parts)
  if dispatch.compiles_for("tpu") and scores > _FEW:
    forms["tpu"] = (_flash if mesh_axes.is_on_one_device()
                    and not _is_latent(q, parts) else _blockwise)
  # Reading keys and values twice costs less than storing these scores.
  if dispatch.compiles_for("gpu") and 2 * q.shape[1] * q.shape[3] >= q.shape[4]:
    forms["cuda"] = forms["rocm"] = _blockwise
  return forms


def _is_latent(q, parts):
  return q.shape[-1] > parts[0][0].shape[-2]


def _span(part):
  return part[3] if len(part) > 3 else None


def _of_layer(parts):
  def alone(part):
    span = _span(part)
    if span is None or span.layer is None:
      return part
    take = lambda x: jax.lax.dynamic_index_in_dim(x, span.layer, keepdims=False)
    return (take(part[0]), take(part[1]), *part[2:])

  return [alone(part) for part in parts]


def _attend_merged(cap, of_prefix, q, parts):
  return _by_tokens(_pair(cap, of_prefix, q, parts))


def _pair(cap, of_prefix, q, parts):
  """Attends to parts with a span by `of_prefix`, and merges the rest.
  `of_prefix` is `_flash`, `_blockwise` or None: no part is apart. A query may
  see nothing. Returns `[B, H, G, T, C]` and `[B, H, G, T]`, for `merge`."""
  queries = q.transpose(0, 2, 3, 1, 4)
  many = of_prefix is _flash and q.shape[1] >= _MANY
  pairs, rest = [], []
  for part in parts:
    if many or of_prefix and _span(part):
      pairs.append(of_prefix(cap, queries, part))
    else:
      rest.append(part)
  if rest:
    pairs.append(_normalized(*_sums(cap, queries, _of_layer(rest), _LOW)))
  return merge(pairs)


def _flash(cap, q, part):
  """Attends by a kernel of each device of a mesh: to its heads."""
  # Imported here, since it takes a while, and a CPU has no use for it.
  from decoding_jax.kernels import flash_attention
  keys, values, mask, span = (*part, None)[:4]
  if span:
    mask = None
  else:
    span = Span(jnp.full(len(q), keys.shape[-1], jnp.int32))
    mask = jnp.broadcast_to(mask, (len(q), q.shape[3], keys.shape[-1]))
  attend = functools.partial(flash_attention.attend, cap=cap)
  axes = mesh_axes.split_by_compiler()
  if axes:
    number = math.prod(axes.values())
    heads, groups = (None if size % number else tuple(axes)
                     for size in q.shape[1:3])
    of_heads = PartitionSpec(*(None,) * (keys.ndim - 3), heads)
    of_queries = PartitionSpec(None, heads, None if heads else groups)
    attend = jax.shard_map(
        attend, in_specs=(of_queries, of_heads, of_heads,
                          *(PartitionSpec(),) * 4),
        out_specs=of_queries, axis_names=set(axes), check_vma=False)
  return attend(q, keys, values, span.stop, span.start, mask, span.layer)


def _blockwise(cap, q, part):
  keys, values, _, span = part
  slots = keys.shape[-1]
  size = min(_SLOTS, slots)

  def block(i, pair):
    # The last one may begin before the end of the one before it.
    first = jnp.minimum(i * size, slots - size)
    at = first + jnp.arange(size)[None, None]
    seen = (at >= i * size) & (at < span.stop[:, None, None])
    if span.start is not None:
      seen &= at >= span.start[..., None]
    part = (_slots(keys, -1, first, size, span.layer),
            _slots(values, -2, first, size, span.layer), seen)
    return merge([pair, _normalized(*_sums(cap, q, [part], _LOW))])

  nothing = (jnp.zeros((*q.shape[:-1], values.shape[-1]), jnp.float32),
             jnp.full(q.shape[:-1], _LOW, jnp.float32))
  return jax.lax.fori_loop(0, -(-slots // size), block, nothing)


def _slots(x, axis, first, size, layer):
  starts, sizes = [0] * x.ndim, list(x.shape)
  starts[axis], sizes[axis] = first, size
  if layer is None:
    return jax.lax.dynamic_slice(x, starts, sizes)
  starts[0], sizes[0] = layer, 1
  return jax.lax.dynamic_slice(x, starts, sizes)[0]


def _attend_twice(cap, q, parts):
  padding = [(0, 0)] * q.ndim
  padding[1] = 0, 1
  parts = [(keys, values, jnp.broadcast_to(
      mask, (mask.shape[0], 2, mask.shape[2]))) for keys, values, mask, *_ in (
          _of_layer(parts))]
  return tuple(x[:, :1] for x in _attend(cap, jnp.pad(q, padding), parts))


def _attend(cap, q, parts):
  # Small arrays are transposed, so that keys and values never are.
  return _by_tokens(_normalized(*_sums(
      cap, q.transpose(0, 2, 3, 1, 4), _of_layer(parts))))


def _by_tokens(pair):
  """Returns a pair of `[B, H, G, T, ...]` as one of `[B, T, H, G, ...]`."""
  return tuple(jnp.moveaxis(x, 3, 1) for x in pair)


def _normalized(weighted, largest, total):
  """Returns a pair for `merge` of what `_sums` returns."""
  return weighted / total[..., None], largest[..., 0] + jnp.log(total)


def _sums(cap, q, parts, low=-jnp.inf):
  """Returns sums over slots, weighted by the exponentials of scores. Of `q [B,
  H, G, T, C]`: sums of values, `[B, H, G, T, C]`, the largest score, `[B, H, G,
  T, 1]`, and the sum of the weights, `[B, H, G, T]`. `low` is the score of what
  is not seen; finite where a query may see nothing."""
  product = functools.partial(jnp.einsum, preferred_element_type=jnp.float32,
                              precision=linear.precision(q.dtype))
  queries = [q, *(_apart(q) for _ in parts[1:])]

  def score(q, keys, values):
    channels = keys.shape[-2]
    scores = product("bhgtc,bhcs->bhgts", q[..., :channels], keys)
    return scores if channels == q.shape[-1] else scores + product(
        "bhgtc,bhsc->bhgts", q[..., channels:], values)

  scores = jnp.concatenate(
      [jnp.where(mask[:, None, None], soft_cap(
          score(q, keys, values), cap), low)
       for q, (keys, values, mask, *_) in zip(queries, parts)], axis=-1)
  largest = scores.max(axis=-1, keepdims=True)
  weights = jnp.exp(scores - largest)
  total = weights.sum(axis=-1)
  ends = itertools.accumulate(part[0].shape[-1] for part in parts[:-1])
  weights = jnp.split(weights, list(ends), axis=-1)
  y = sum(product("bhgts,bhsc->bhgtc", w.astype(values.dtype), values)
          for w, (_, values, *_) in zip(weights, parts))
  return y, largest, total


def _apart(q):
  """Returns `q`, on a GPU behind a barrier. XLA:GPU would merge two products
  with the same queries, and copy all keys of a cache to append the block's."""
  return dispatch.by_platform(
      q, default=lambda q: q, cuda=jax.lax.optimization_barrier,
      rocm=jax.lax.optimization_barrier)


_attention = dispatch.on_cpu(
    _reference, lambda q, parts, *, cap, dtype=jnp.float32: bindings.attention(
        q, _of_layer(parts), cap=cap, dtype=dtype),
    fits=lambda q, parts, *, cap, dtype=jnp.float32: (
        bindings.supports_floats(parts[0][0])
        and bindings.supports_dtype(dtype) and not _is_latent(q, parts)))
