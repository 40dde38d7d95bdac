"""Masked-diffusion models as draft and as target of `dj.generate`.

A block-diffusion model is autoregressive where a block is one token. So one
model can verify, token by token, what it drafts in a block: S2D2 (arXiv
2603.25702), of which only the abstract was read, and here always with exact
verification:

    dj.generate(..., target=as_target(model), draft=as_draft(model, V),
                method=dj.methods.masked_draft(...))
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.canvas import checks
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Cache, LanguageModel, MaskedModel


@functools.lru_cache(maxsize=None)
def as_draft(model: MaskedModel, vocab_size: int) -> LanguageModel:
  """Makes the draft model of `drafters.masked`; equal arguments, one object.

  Args:
    model: a masked-diffusion model.
    vocab_size: V of the target; further tokens of the model, such as its mask,
      are never drafted.

  Returns:
    A language model that caches nothing: of whole texts, whose masked positions
    are tokens below 0. It takes the parameters of `model`.

  Raises:
    ValueError: if the model has fewer than V tokens, or recurrent layers.
  """
  checks.check_model(model)
  inner = model.language_model
  if inner.vocab_size < vocab_size:
    raise ValueError(f"vocab_size={vocab_size}: the masked model has "
                     f"{inner.vocab_size} tokens.")

  def init_cache(batch, capacity):
    del capacity
    return Cache((), (), jnp.zeros(batch, jnp.int32))

  def forward(params, tokens, positions, cache, block, slot, mask):
    del cache, slot
    is_mask = tokens < 0
    tokens = jnp.where(is_mask, model.mask_id, tokens)
    if model.block_causal:  # The text does not see what follows it.
      mask &= is_mask[:, :, None] | ~is_mask[:, None]
    empty = inner.init_cache(len(tokens), 0)
    logits, _ = inner.forward(
        params, tokens, positions, empty,
        cache_lib.init_block(empty, tokens.shape[1]), 0,
        mask[:, :, :tokens.shape[1]])
    if model.shifted:
      logits = jnp.concatenate([logits[:, :1], logits[:, :-1]], axis=1)
    masks = jnp.arange(vocab_size)[None, None] == model.mask_id
    return jnp.where(masks, -jnp.inf, logits[..., :vocab_size]), block

  return LanguageModel(init_cache, forward, vocab_size, 0,
                       abstract_params=inner.abstract_params)


@functools.lru_cache(maxsize=None)
def as_target(model: MaskedModel) -> LanguageModel:
  """Makes an autoregressive model; equal arguments, one object.

  Each token of a forward is followed by a mask, which sees what the token sees
  and itself: its logits predict the next token. Masks are not kept. A
  shifted model needs none.

  Args:
    model: a masked-diffusion model, trained with blocks of any length.

  Returns:
    A language model with the parameters of `model`, whose mask has probability
    0.

  Raises:
    ValueError: if the model has recurrent layers.
  """
  checks.check_model(model)
  inner = model.language_model
  read = inner.forward if model.shifted else functools.partial(_read, model)

  def forward(params, *arguments):
    logits, block = read(params, *arguments)
    masks = jnp.arange(logits.shape[-1])[None, None] == model.mask_id
    return jnp.where(masks, -jnp.inf, logits), block

  # The last token's mask has a position too.
  length = inner.max_length and inner.max_length - (not model.shifted)
  return LanguageModel(inner.init_cache, forward, inner.vocab_size, length,
                       abstract_params=inner.abstract_params)


def _read(model, params, tokens, positions, cache, block, slot, mask):
  """See `types.LanguageModel.forward`; fresh slots come after the block's."""
  count, slots = tokens.shape[1], mask.shape[2]
  room = cache_lib.init_block(cache, 2 * count)
  longer = cache_lib.map_arrays(
      lambda x, y, _, axis: jnp.concatenate([x, y], axis), block, room)
  own = jax.lax.dynamic_slice_in_dim(mask, slot, count, 2)
  order = jnp.arange(slots)
  before = mask & ((order < slot) | (order >= slot + count))[None, None]
  itself = jnp.broadcast_to(jnp.eye(count, dtype=bool)[None], own.shape)
  seen = jnp.concatenate(
      [jnp.concatenate([before, own, jnp.zeros_like(own)], axis=2),
       jnp.concatenate([before, own, itself], axis=2)], axis=1)
  logits, longer = model.language_model.forward(
      params, jnp.concatenate(
          [tokens, jnp.full_like(tokens, model.mask_id)], axis=1),
      jnp.concatenate([positions, positions + 1], axis=1), cache, longer,
      slots, seen)
  kept = cache_lib.map_arrays(
      lambda x, y, _, axis: jax.lax.dynamic_update_slice_in_dim(
          x, jax.lax.slice_in_dim(y, slots, slots + count, axis=axis), slot,
          axis), block, longer)
  return logits[:, count:], kept
