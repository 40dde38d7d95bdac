"""A masked-diffusion model as the draft model of `dj.generate`."""

import functools

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
    are tokens below 0. Its parameters are those of `model`.

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
