"""Forwards of a prompt and a canvas, whole or of one block with a cache.

Prompts are left-padded, so that all canvases begin at slot P. A store keeps
keys and values from the beginning of a row's current block; only the block's
own are computed again, as fresh slots:

    slot      0 .. P-1      P .. P+L-1        P+L ..
              prompt        canvas, stored    the block, fresh

Exact for block-causal models (SDAR, arXiv 2510.06303; Fast-dLLM v2, arXiv
2509.26328), whose prompts and finished blocks are read once. Where all tokens
see each other it is the dual cache of Fast-dLLM (arXiv 2505.22618, section
3.2), an approximation, renewed at each block.
"""

import jax
import jax.numpy as jnp

from decoding_jax.canvas.types import Context
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Block


def whole(context: Context, canvases):
  """Reads prompts and canvases `[B, D, L]`; returns logits `[B, D, L, V]`.

  Logits are of the token at each position. Returns the block of keys and values
  too, of B * D rows.
  """
  batch, number, length = canvases.shape
  repeat = lambda x: jnp.repeat(x, number, axis=0)
  tokens = jnp.concatenate(
      [repeat(context.prompts), canvases.reshape(batch * number, length)],
      axis=1)
  slots, padding = jnp.arange(tokens.shape[1])[None], repeat(context.padding)
  slots = jnp.broadcast_to(slots, tokens.shape)
  logits, block = _forward(context, tokens, slots, padding,
                           _empty(context, *tokens.shape), 0,
                           _sees(context, slots, slots, padding))
  first = context.prompts.shape[1] - context.model.shifted
  return logits[:, first:first + length].reshape(
      batch, number, length, logits.shape[-1]), block


def of_block(context: Context, canvases, store: Block, start):
  """Reads one block of each canvas; all else is taken from the store.

  Canvases `[B, D, L]` differ within the block alone, from `start [B]` on.
  Returns logits `[B, D, L, V]`, 0 outside of the block.
  """
  # A shifted model predicts the first token of a block at the one before it.
  lead = int(context.model.shifted)
  logits, _ = _of_slots(context, canvases, store,
                        context.prompts.shape[1] - lead + start,
                        context.block + lead)
  logits = logits[:, :, :context.block]
  spread = jnp.zeros((*canvases.shape, logits.shape[-1]), logits.dtype)
  return jax.vmap(lambda x, y, at: jax.lax.dynamic_update_slice_in_dim(
      x, y, at, 1))(spread, logits, start)


def of_prompts(context: Context, length: int) -> Block:
  """Returns a store of P + L slots, with the prompts read."""
  _, block = whole(context, jnp.zeros((len(context.prompts), 1, 0), jnp.int32))
  return cache_lib.map_arrays(
      lambda x, y, _, slot_axis: jnp.concatenate([x, y], slot_axis), block,
      _empty(context, len(context.prompts), length))


def with_block(context: Context, canvas, store: Block, start) -> Block:
  """Returns the store with a block `[B]` that is filled, of a canvas `[B, L]`.

  Exact of a block-causal model, if all blocks before it are stored.
  """
  total = context.prompts.shape[1] + canvas.shape[1]
  first = context.prompts.shape[1] + start
  _, block = _of_slots(context, canvas[:, None], store, first, context.block)

  def put(old, new, row_axis, slot_axis):
    fresh = jax.lax.slice_in_dim(new, total, None, axis=slot_axis)
    write = lambda x, y, at: jax.lax.dynamic_update_slice_in_dim(
        x, y, at, slot_axis - (slot_axis > row_axis))
    return jax.vmap(write, (row_axis, row_axis, 0), row_axis)(old, fresh, first)

  return cache_lib.map_arrays(put, store, block)


def _of_slots(context: Context, canvases, store: Block, first, count: int):
  """Reads `count` slots of each canvas from `first [B]` on. The canvases of a
  row are branches of one block of fresh slots, each of which sees its own
  alone. Returns logits `[B, D, count, V]`, and the store with D * count fresh
  slots."""
  batch, number, length = canvases.shape
  total = context.prompts.shape[1] + length
  prompts = jnp.broadcast_to(context.prompts[:, None],
                             (batch, number, context.prompts.shape[1]))
  tokens = jax.vmap(
      lambda x, at: jax.lax.dynamic_slice_in_dim(x, at, count, 1))(
          jnp.concatenate([prompts, canvases], axis=-1), first)
  own = first[:, None] + jnp.arange(count, dtype=jnp.int32)[None]
  fresh, canvas = jnp.tile(own, (1, number)), jnp.repeat(
      jnp.arange(number), count)
  slots = jnp.broadcast_to(jnp.arange(total)[None], (batch, total))
  outside = (slots < own[:, :1]) | (slots > own[:, -1:])
  mask = jnp.concatenate(
      [_sees(context, fresh, slots, context.padding) & outside[:, None],
       _sees(context, fresh, fresh, context.padding)
       & (canvas[:, None] == canvas[None])[None]], axis=-1)
  block = cache_lib.map_arrays(
      lambda x, y, _, slot_axis: jnp.concatenate([x, y], slot_axis), store,
      _empty(context, *fresh.shape))
  logits, block = _forward(context, tokens.reshape(batch, -1), fresh,
                           context.padding, block, total, mask)
  return logits.reshape(batch, number, count, -1), block


def empty_store(context: Context, length: int) -> Block:
  """Returns a store of P + L slots for all rows."""
  return _empty(context, len(context.prompts),
                context.prompts.shape[1] + length)


def _forward(context: Context, tokens, slots, padding, block, slot, mask):
  """Calls the model on tokens `[B, T]` at slots `[B, T]`."""
  model = context.model.language_model
  positions = jnp.maximum(slots - padding[:, None], 0)
  return model.forward(context.params, tokens, positions.astype(jnp.int32),
                       model.init_cache(len(tokens), 0), block, slot, mask)


def _empty(context: Context, rows, slots) -> Block:
  fresh = context.model.language_model.init_cache(rows, slots)
  return Block(fresh.keys, fresh.values, fresh.features)


def _sees(context: Context, queries, keys, padding):
  """Returns which key slots `[B, N]` queries `[B, T]` see: `[B, T, N]`."""
  visible = jnp.broadcast_to(
      (keys >= padding[:, None])[:, None], (*queries.shape, keys.shape[1]))
  if context.model.block_causal:
    width = context.prompts.shape[1]
    # The prompt is block -1, or blocks -1, -2, ...
    least = -width if context.model.causal_prompt else -1
    number = lambda slots: jnp.maximum(slots - width, least) // context.block
    visible &= number(keys)[:, None] <= number(queries)[:, :, None]
  # A padding slot sees itself, so that no softmax is over nothing.
  return visible | (queries[:, :, None] == keys[:, None])
