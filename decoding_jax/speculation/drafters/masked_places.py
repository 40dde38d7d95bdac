"""Drafts of a masked-diffusion model: all positions by one forward.

The model reads the end of the text and D masked positions. Its distributions at
these are independent, so any expander grows a tree from them, and verification
is exact: children sample the distribution of their level, whatever the node.
"""

import functools

import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.speculation import expanders, shared_noise
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.drafters import language_model
from decoding_jax.types import (Cache, Context, DecodeState, Drafter,
                                Draws, DraftTree, Expander, LanguageModel, NONE,
                                Seen)
from decoding_jax.validation import values


@functools.lru_cache(maxsize=None)
def masked(expander: Expander, window: int) -> Drafter:
  """Makes the drafter of a masked-diffusion model, see `canvas.as_draft`. It
  calls the model once a step, however deep the tree; the model reads the last
  `window` tokens of the text."""
  values.check_positive("window", window)
  # The noise of its levels is its own: no `noise_keys` are set.
  draws = (Draws.ARBITRARY if expander.draws == Draws.SHARED_NOISE
           else expander.draws)
  return Drafter(
      expander.layout, lambda context, state: state,
      functools.partial(_propose, expander, window), _observe, calls=1,
      draws=draws, draft_calls=language_model.own_cache(1))


def _propose(expander, window, keys, context: Context,
             state: DecodeState) -> tuple[DraftTree, None]:
  logits = read(context.draft, context.draft_params, state, window,
                tree_lib.depth(expander.layout))
  tree, _ = expanders.grow(
      keys, expander, _known(context.draft.vocab_size),
      (logits, state.length), Cache((), (), state.length - 1),
      token_buffer.newest(state, 2), state.length, context.draft_warper,
      shared_noise.keys_for(expander, state))
  return tree, None


def read(model: LanguageModel, params, state: DecodeState, window: int,
         depth: int):
  """Returns logits `[B, D, V]` of the D positions after the texts."""
  order = jnp.arange(window + depth)[None]
  columns = state.length[:, None] - window + order
  # Shorter texts stand at the end of the window, with nothing before them.
  padding = jnp.maximum(window - state.length, 0)[:, None]
  inside = order >= padding
  text = buffers.take_along(state.tokens, jnp.clip(
      columns, 0, state.tokens.shape[1] - 1), axis=1)
  tokens = jnp.where(order < window, jnp.where(inside, text, 0), NONE)
  mask = jnp.broadcast_to(inside[:, None], (*tokens.shape, tokens.shape[1]))
  # A slot without a token sees itself, so that no softmax is over nothing.
  mask |= jnp.eye(tokens.shape[1], dtype=bool)[None]
  empty = model.init_cache(len(tokens), 0)
  logits, _ = model.forward(
      params, tokens, jnp.maximum(order - padding, 0), empty,
      cache_lib.init_block(empty, tokens.shape[1]), 0, mask)
  return logits[:, window:]


@functools.lru_cache(maxsize=None)
def _known(vocab_size) -> LanguageModel:
  """Returns a model whose parameters are logits of each level, and lengths."""
  def forward(params, tokens, positions, cache, block, slot, mask):
    del tokens, cache, slot, mask
    logits, length = params
    # The root, which predicts the first one, is the last token of the text.
    level = jnp.maximum(positions - (length - 1)[:, None], 0)
    return buffers.take_along(logits, level[:, :, None], axis=1), block

  return LanguageModel(lambda batch, _: Cache((), (), jnp.zeros(
      batch, jnp.int32)), forward, vocab_size)


def _observe(context: Context, before: DecodeState, after: DecodeState,
             seen: Seen) -> DecodeState:
  del context, before, seen
  # Nothing is cached, but the cache has a length that others check.
  return after.replace(draft_cache=after.draft_cache.replace(
      length=after.length - 1))
