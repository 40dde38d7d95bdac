"""Forwards of a prompt and a canvas, whole or of one block with a cache.

Prompts are left-padded, so that all canvases begin at slot P. A store keeps the
keys and values of all slots from the beginning of a row's current block; within
the block only its own are computed again, as fresh slots after the others:

    slot      0 .. P-1      P .. P+L-1        P+L ..
              prompt        canvas, stored    the block, fresh

Of a block-causal model this is exact, since what is before a block does not
change. Where all tokens see each other it is an approximation, the dual cache
of Fast-dLLM (arXiv 2505.22618, section 3.2).
"""

import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax.canvas.types import Context
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Block


def whole(context: Context, canvases):
  """Reads prompts and canvases.

  Args:
    context: of B rows.
    canvases: `[B, D, L]` int32.

  Returns:
    Logits `[B, D, L, V]`, each of the token at that position; and a block of
    keys and values of B * D rows.
  """
  batch, number, length = canvases.shape
  repeat = lambda x: jnp.repeat(x, number, axis=0)
  tokens = jnp.concatenate(
      [repeat(context.prompts), canvases.reshape(-1, length)], axis=1)
  slots, padding = jnp.arange(tokens.shape[1])[None], repeat(context.padding)
  slots = jnp.broadcast_to(slots, tokens.shape)
  logits, block = _forward(context, tokens, slots, padding,
                           _empty(context, *tokens.shape), 0,
                           _sees(context, slots, slots, padding))
  first = context.prompts.shape[1] - context.model.shifted
  return logits[:, first:first + length].reshape(
      batch, number, length, -1), block


def of_block(context: Context, canvas, store: Block, start):
  """Reads one block of each row; all else is taken from the store.

  Args:
    context: of B rows.
    canvas: `[B, L]` int32.
    store: P + L slots.
    start: `[B]` int32, position at which the block begins.

  Returns:
    Logits `[B, L, V]`, 0 outside of the block.
  """
  width, lead = context.prompts.shape[1], int(context.model.shifted)
  total = width + canvas.shape[1]
  # A shifted model predicts the first token of a block at the one before it.
  fresh = (width - lead + start)[:, None] + jnp.arange(context.block + lead)[
      None]
  tokens = kernels.take_along(
      jnp.concatenate([context.prompts, canvas], axis=1), fresh, axis=1)
  slots = jnp.broadcast_to(jnp.arange(total)[None], (len(canvas), total))
  outside = (slots < fresh[:, :1]) | (slots > fresh[:, -1:])
  mask = jnp.concatenate(
      [_sees(context, fresh, slots, context.padding) & outside[:, None],
       _sees(context, fresh, fresh, context.padding)], axis=-1)
  room = _empty(context, *fresh.shape)
  block = cache_lib.map_arrays(
      lambda x, y, _, slot_axis: jnp.concatenate([x, y], slot_axis), store,
      room)
  logits, _ = _forward(context, tokens, fresh, context.padding, block, total,
                       mask)
  logits = logits[:, :context.block]
  spread = jnp.zeros((len(canvas), canvas.shape[1], logits.shape[-1]),
                     logits.dtype)
  return jax.vmap(lambda x, y, at: jax.lax.dynamic_update_slice_in_dim(
      x, y, at, 0))(spread, logits, start)


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
  """Returns which slots `[B, N]` those of `[B, T]` see: `[B, T, N]`."""
  visible = jnp.broadcast_to(
      (keys >= padding[:, None])[:, None], (*queries.shape, keys.shape[1]))
  if context.model.block_causal:
    width = context.prompts.shape[1]
    # The prompt is block -1.
    number = lambda slots: jnp.maximum(slots - width, -1) // context.block
    visible &= number(keys)[:, None] <= number(queries)[:, :, None]
  # A padding slot sees itself, so that no softmax is over nothing.
  return visible | (queries[:, :, None] == keys[:, None])
