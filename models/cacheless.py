"""Any function from texts to logits as a language model, without a cache.

A network that knows neither caches nor masks of trees decodes by every method:
one of Flax in one line, a recurrent one as it is. It reads each text from its
beginning, and each node of a tree as the text that ends with it. That is slow,
and it is exact: a way to try a model out, and the oracle for one with a cache
(`conformance.check`).
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax import types

# The feature that is kept of a token: the token itself.
_TOKENS = "tokens"


@functools.lru_cache(maxsize=None)
def language_model(function, vocab_size: int, max_length: int = 0,
                   abstract_params=None) -> types.LanguageModel:
  """Makes a language model of a function of whole texts.

  Args:
    function: `(params, tokens [n, L] int32) -> logits [n, L, V]`, such as
      `module.apply` of Flax. The logits at a token must not depend on those
      after it, which may be any. Hashable; it may be called with any n and L,
      but L is at most `max_length`.
    vocab_size: V.
    max_length: positions that it knows; 0 if there is no limit.
    abstract_params: see `types.LanguageModel`.

  Returns:
    The `LanguageModel`, with the parameters of `function`; equal functions
    give the same object, so programs are shared.
  """
  def read(params, texts, ends):
    logits = function(params, texts)
    _check(logits, (*texts.shape, vocab_size))
    return jnp.take_along_axis(logits, ends[:, None, None], axis=1)[:, 0]

  return at_ends(read, vocab_size, max_length, abstract_params)


@functools.lru_cache(maxsize=None)
def at_ends(function, vocab_size: int, max_length: int = 0,
            abstract_params=None) -> types.LanguageModel:
  """Makes a language model of a function that gives one distribution per text.

  `function(params, tokens [n, L] int32, ends [n] int32)` returns logits `[n,
  V]` after the token at the end of each text; what follows it may be anything.
  For the others see `language_model`.
  """
  forward = functools.partial(_forward, function, max_length)
  return types.LanguageModel(_init_cache, forward, vocab_size, max_length,
                             abstract_params=abstract_params)


def _init_cache(batch, capacity):
  return types.Cache((), (), jnp.zeros(batch, jnp.int32), {
      _TOKENS: jnp.zeros((batch, capacity), jnp.int32)})


def _forward(function, max_length, params, tokens, positions, cache, block,
             slot, mask):
  del positions  # A token's position follows from the tokens that it sees.
  kept = jax.lax.dynamic_update_slice_in_dim(block.features[_TOKENS], tokens,
                                             slot, 1)
  prefix = cache.features[_TOKENS]
  slots = prefix.shape[1] + kept.shape[1]
  length = min(slots, max_length) if max_length else slots

  def read(seen):
    """Returns logits `[B, V]` of the token that sees `[B, N]` of the block."""
    return function(params, *jax.vmap(functools.partial(_text, length))(
        prefix, cache.length, kept, seen))

  # One token after the other: the logits of all texts at once, of which one a
  # text is needed, would be as many as no other model has.
  logits = jax.lax.map(read, mask.swapaxes(0, 1)).swapaxes(0, 1)
  return logits, types.Block((), (), {_TOKENS: kept})


def _text(length, prefix, count, block, seen):
  """Returns a row's text `[length]`, and the index of its last token. It is the
  prefix `[S]` as far as it counts, and those tokens of the block `[N]` that are
  seen, which are in the order of the text."""
  text = jnp.zeros(length, jnp.int32)
  text = text.at[jnp.arange(len(prefix))].set(prefix, mode="drop")
  places = count + jnp.cumsum(seen) - 1
  text = text.at[jnp.where(seen, places, length)].set(block, mode="drop")
  # A tree may reach beyond the last position; nothing there is committed.
  return text, jnp.clip(places[-1], 0, length - 1)


def _check(logits, shape):
  got, dtype = jnp.shape(logits), getattr(logits, "dtype", type(logits))
  if got != shape or not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"function returned logits of shape {got} and type "
                     f"{dtype}: floats of [n, L, V]={shape} are needed.")
