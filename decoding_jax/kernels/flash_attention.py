"""Attention on a TPU whose scores stay in the core, as a Pallas kernel.

Blocks of slots are read with a running maximum and sum (Dao et al. 2022, arXiv
2205.14135); blocks outside of a row's span are skipped.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
import jax.numpy as jnp

from decoding_jax.kernels import linear

# What is not seen, and the maximum of nothing; finite, so that no difference of
# two is NaN.
_LOW = -1e30
_LANES = 128
# Queries that are one block, at most; and of a tile of 16 bits.
_ROWS, _TILE = 1024, 16
# Slots and scores of a block, and numbers of its keys, at most: they fill a
# part of a core's memory, and reading them takes longer than a grid step.
_SLOTS, _SCORES, _NUMBERS = 4096, 2**19, 2**19


class _Sizes(NamedTuple):
  """Sizes of a block: key/value heads, queries of each, slots."""
  heads: int
  rows: int
  slots: int


class _Static(NamedTuple):
  """Static arguments that a kernel is compiled for."""
  cap: float
  sizes: _Sizes
  slots: int
  precision: Any
  has_start: bool
  has_mask: bool


def attend(q, keys, values, stop, start=None, mask=None, layer=None, *, cap=0.0,
           interpret=False):
  """Attends to some keys; returns `[B, H, G, T, C]` and log-sum-exps `[B, H, G,
  T]`, very low where nothing is seen. `q [B, H, G, T, C]` is scaled; keys are
  `[B, H, C, S]`, values `[B, H, S, C]`, or with an axis of layers in front, of
  which `layer []` is read uncopied. Seen are slots from `start [B, T]` (None:
  0) to before `stop [B]` that are true in `mask [B, T, S]` (None: all).
  `interpret` runs anywhere, slowly."""
  batch, heads, groups, length, channels = q.shape
  slots = keys.shape[-1]
  padded, rows = _rows(groups, length)
  along_t = lambda x, axis: jnp.pad(x, [
      (0, padded - length if i == axis else 0) for i in range(x.ndim)])
  flat = along_t(q, 3).reshape(batch, heads, -1, channels)
  unused = -flat.shape[2] % min(rows, _TILE)
  flat = jnp.pad(flat, ((0, 0), (0, 0), (0, unused), (0, 0)))
  rows = min(rows, flat.shape[2])
  sizes = _sizes(heads, rows, slots, channels)
  first = jnp.zeros_like(stop)
  if layer is None:
    keys, values, layer = keys[None], values[None], 0
  elif not interpret:
    # The compiler would fetch all layers ahead where a core has room for them.
    keys, values = (pltpu.with_memory_space_constraint(x, pltpu.HBM)
                    for x in (keys, values))
  arrays = [flat, keys, values]
  if start is not None:
    first = jnp.maximum(start.min(axis=1), 0).astype(jnp.int32)
    start = jnp.tile(along_t(start, 1), (1, groups))
    arrays.append(jnp.pad(start, ((0, 0), (0, unused)))[..., None])
  if mask is not None:
    arrays.append(along_t(mask, 1).astype(jnp.int8))
  static = _Static(cap, sizes, slots, linear.precision(q.dtype),
                   start is not None, mask is not None)
  scalars = stop, first, jnp.reshape(layer, 1)
  y, log_sum = _call(static, [x.astype(jnp.int32) for x in scalars], arrays,
                     interpret)
  grouped = lambda x: x[:, :, :groups * padded].reshape(
      batch, heads, groups, padded, -1)[:, :, :, :length]
  return grouped(y), grouped(log_sum)[..., 0]


def _rows(groups, length):
  """Returns T rounded up, and how many queries are a block, at most."""
  if groups * length <= _ROWS:
    return length, groups * length + _TILE
  padded = -(-length // _LANES) * _LANES
  return padded, next(x for x in (512, 256, _LANES) if not padded % x)


def _sizes(heads, rows, slots, channels):
  most = max(_LANES, min(_SLOTS, _SCORES // rows // _LANES * _LANES))
  if slots > most:
    # Equal blocks, as far as their sizes are multiples.
    number = -(-slots // most)
    most = -(-slots // number // _LANES) * _LANES
  size = min(most, slots)
  together = max(1, min(_NUMBERS // (size * channels),
                        _SCORES // (size * rows)))
  return _Sizes(next(n for n in range(min(heads, together), 0, -1)
                     if not heads % n), rows, size)


def _call(static, scalars, arrays, interpret):
  q, keys = arrays[:2]
  batch, heads, rows, channels = q.shape
  sizes, slots = static.sizes, static.slots
  tokens = arrays[-1].shape[1] // sizes.rows if static.has_mask else 1

  def block(b, s, stop, first, _):
    """The block of slots; where it is not needed, one that is there already."""
    # Not `//`, which looks up the generation of this machine's TPU.
    number = lambda slot: jax.lax.div(slot, jnp.int32(sizes.slots))
    last = number(jnp.maximum(stop[b] - 1, 0))
    return jnp.minimum(jnp.maximum(s, number(first[b])), last)

  queries = lambda width: pl.BlockSpec(
      (1, sizes.heads, sizes.rows, width), lambda b, h, r, s, *_: (b, h, r, 0))
  # Of the layer alone: its index is the last of the scalars.
  in_specs = [
      queries(channels),
      pl.BlockSpec((None, 1, sizes.heads, channels, sizes.slots),
                   lambda b, h, r, s, *scalars: (
                       scalars[-1][0], b, h, 0, block(b, s, *scalars))),
      pl.BlockSpec((None, 1, sizes.heads, sizes.slots, channels),
                   lambda b, h, r, s, *scalars: (
                       scalars[-1][0], b, h, block(b, s, *scalars), 0))]
  if static.has_start:
    in_specs.append(pl.BlockSpec((1, sizes.rows, 1),
                                 lambda b, h, r, s, *_: (b, r, 0)))
  if static.has_mask:
    in_specs.append(pl.BlockSpec(
        (1, sizes.rows, sizes.slots),
        lambda b, h, r, s, *scalars: (b, jax.lax.rem(r, jnp.int32(tokens)),
                                      block(b, s, *scalars))))
  scratch = lambda width: pltpu.VMEM((sizes.heads, sizes.rows, width),
                                     jnp.float32)
  return pl.pallas_call(
      functools.partial(_kernel, static),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=len(scalars),
          grid=(batch, heads // sizes.heads, rows // sizes.rows,
                pl.cdiv(slots, sizes.slots)),
          in_specs=in_specs, out_specs=[queries(channels), queries(1)],
          scratch_shapes=[scratch(1), scratch(1), scratch(channels)]),
      out_shape=[jax.ShapeDtypeStruct((batch, heads, rows, width), jnp.float32)
                 for width in (channels, 1)],
      compiler_params=pltpu.CompilerParams(dimension_semantics=(
          "parallel", "parallel", "parallel", "arbitrary")),
      cost_estimate=pl.CostEstimate(
          flops=4 * q.size * slots, transcendentals=q.size // channels * slots,
          bytes_accessed=2 * math.prod(keys.shape[1:]) * keys.dtype.itemsize),
      interpret=interpret, name="flash_attention")(*scalars, *arrays)


def _kernel(static, stops, firsts, _, q, keys, values, *refs):
  """Adds a block of slots to what is known of a block of queries."""
  start = refs[0] if static.has_start else None
  mask = refs[static.has_start] if static.has_mask else None
  y, log_sum, largest, total, weighted = refs[-5:]
  b, s = pl.program_id(0), pl.program_id(3)
  stop, before = stops[b], s * static.sizes.slots

  @pl.when(s == 0)
  def _():
    largest[...] = jnp.full_like(largest, _LOW)
    total[...] = jnp.zeros_like(total)
    weighted[...] = jnp.zeros_like(weighted)

  @pl.when((before < stop) & (before + static.sizes.slots > firsts[b]))
  def _():
    at = before + jax.lax.broadcasted_iota(
        jnp.int32, (static.sizes.rows, static.sizes.slots), 1)
    seen = at < stop
    if start is not None:
      seen &= at >= start[0]
    if mask is not None:
      seen &= mask[0].astype(jnp.int32) != 0
    for h in range(static.sizes.heads):
      _add(static, q[0, h], keys[0, h], _inside(static, values[0, h], before),
           seen, (largest.at[h], total.at[h], weighted.at[h]))

  @pl.when(s == pl.num_programs(3) - 1)
  def _():
    # Not 0 where nothing is seen, which would be divided by.
    mass = jnp.maximum(total[...], 1e-37)
    y[0] = weighted[...] / mass
    log_sum[0] = largest[...] + jnp.log(mass)


def _add(static, q, keys, values, seen, state):
  largest, total, weighted = state
  product = functools.partial(jax.lax.dot, precision=static.precision,
                              preferred_element_type=jnp.float32)
  scores = product(q, keys)
  if static.cap:
    scores = static.cap * jnp.tanh(scores / static.cap)
  scores = jnp.where(seen, scores, _LOW)
  old = largest[...]
  new = jnp.maximum(old, scores.max(axis=-1, keepdims=True))
  shares, decay = jnp.exp(scores - new), jnp.exp(old - new)
  largest[...] = new
  total[...] = total[...] * decay + shares.sum(axis=-1, keepdims=True)
  weighted[...] = weighted[...] * decay + product(
      shares.astype(values.dtype), values)


def _inside(static, values, before):
  """Returns values, 0 where a last block ends after the last slot. Anything may
  be there, and a weight of 0 would not hide a NaN."""
  if not static.slots % static.sizes.slots:
    return values
  at = before + jax.lax.broadcasted_iota(jnp.int32, values.shape, 0)
  return jnp.where(at < static.slots, values, jnp.zeros_like(values))
