"""Prefill: what is cached of the prompts before the first step."""

import functools
import math

import jax
import jax.numpy as jnp

from decoding_jax import programs
from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Block, Cache, LanguageModel
from decoding_jax.validation import values

# Tokens of a row that are scored at once, at most. Scores of attention are then
# never larger than `[CHUNK, S]`, however long the prompt; a chunk of this size
# keeps an accelerator busy, even of a single row.
CHUNK = 512


def capacity(width, room, shared=0) -> int:
  """Returns the slots of a generation's cache: P, `room`, and some more. The
  last chunk fits in as well: it may end a little after the prompt, of which a
  model that shares nothing of L tokens has chunks of its own."""
  ends = [begin + math.prod(chunks(width - begin - 1, CHUNK))
          for begin in (0, shared)]
  return shared + cache_lib.round_up(max(width + room, *ends) - shared)


@functools.partial(programs.jit, static_argnums=(0, 1, 2))
def prefill(slots, chunk, model: LanguageModel, params, *, prompts,
            lengths, shared: Block | None = None) -> Cache:
  """Returns a cache of `lengths - 1` tokens a row: all but the last one.
  `slots` is from `capacity`; at most `chunk` tokens of a row are scored at
  once. `prompts [B, P]` int32 are right-padded, `lengths [B]` in 1..P.
  `shared`, of `share`, holds the first L tokens of all prompts, L < lengths;
  None: nothing."""
  cache = _read(slots, chunk, model, params, prompts, lengths, shared)
  return model.after_prompt(params, cache) if model.after_prompt else cache


@functools.partial(programs.jit, static_argnums=(0, 1, 2))
def share(count, chunk, model: LanguageModel, params, *, prompts) -> Block:
  """Reads the `count` tokens that all prompts begin with, of the first prompt.
  Returns `Cache.shared`; the model `reads_shared`."""
  cache = _read(capacity(count + 1, 0), chunk, model, params,
                prompts[:1, :count + 1], jnp.full(1, count + 1, jnp.int32))
  return cache_lib.map_arrays(
      lambda x, _, slot_axis: jax.lax.slice_in_dim(x, 0, count,
                                                   axis=slot_axis), cache)


def _empty(model, batch, slots, shared):
  """A cache of the model, in which there are the shared tokens alone."""
  cache = model.init_cache(batch, slots)
  _check_cache(cache, batch, slots)
  if not shared:
    return cache
  cache = cache.replace(shared=shared)
  return cache.replace(length=cache.length + cache_lib.num_shared(cache))


def _read(slots, chunk, model, params, prompts, lengths, shared=None):
  begin = cache_lib.num_shared(Cache((), (), lengths, shared=shared))
  prompts, count = prompts[:, begin:], lengths - 1 - begin
  batch, width = prompts.shape[0], prompts.shape[1] - 1
  cache = _empty(model, batch, slots - begin, shared)
  number, size = chunks(width, chunk)
  if not number:
    # What the model returns is checked all the same.
    jax.eval_shape(lambda: _score(model, params, prompts[:, :1],
                                  cache.length[:, None], cache))
    return cache
  tokens = jnp.where(jnp.arange(width)[None] <= count[:, None], prompts[:, :-1],
                     0)
  order = jnp.broadcast_to(jnp.arange(size), (batch, size))
  if number == 1:
    # Nothing is cached yet, so there is nothing else of a row to attend to.
    block = _score(model, params, tokens, begin + order,
                   _empty(model, batch, 0, shared))
    return cache_lib.commit(cache, block, order, count)
  tokens = jnp.pad(tokens, ((0, 0), (0, number * size - width)))

  def step(i, cache):
    return extend(
        model, params, cache,
        jax.lax.dynamic_slice_in_dim(tokens, i * size, size, 1),
        jnp.clip(count - i * size, 0, size))

  # No row has anything in the chunks after the longest prompt.
  return jax.lax.fori_loop(0, -(-count.max() // size), step, cache)


def extend(model: LanguageModel, params, cache: Cache, tokens, count) -> Cache:
  """Reads the next `count [B]` of `tokens [B, T]`, 0 or more a row. The cache
  must have room for T more tokens a row."""
  order = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  block = _score(model, params, tokens, cache.length[:, None] + order, cache)
  return cache_lib.commit(cache, block, cache_lib.await_block(order, block),
                          count)


def read_rest(size, model: LanguageModel, params, cache: Cache, prompts,
              lengths) -> Cache:
  """Reads what a cache lacks of the first `lengths - 1` of prompts `[B, P]`,
  `size` tokens of a row at once, and does what is done after a prompt."""
  def fit(slots):
    return lambda x, _, axis: jax.lax.pad(x, jnp.zeros((), x.dtype), [
        (0, slots if i == axis else 0, 0) for i in range(x.ndim)])

  def rest(cache):
    return jnp.maximum(lengths - 1 - cache.length, 0)

  def step(cache):
    columns = cache.length[:, None] + jnp.arange(size)[None]
    tokens = buffers.take_along(prompts, jnp.minimum(
        columns, prompts.shape[1] - 1), axis=1)
    return extend(model, params, cache, tokens, jnp.minimum(rest(cache), size))

  # Rows that lack nothing have as much written after their ends, too.
  resized = lambda cache, slots: cache_lib.with_arrays(
      cache, cache_lib.map_arrays(fit(slots), cache))
  cache = resized(jax.lax.while_loop(
      lambda cache: rest(cache).any(), step, resized(cache, size)), -size)
  return model.after_prompt(params, cache) if model.after_prompt else cache


def chunks(width: int, chunk: int) -> tuple[int, int]:
  """Returns number and size of equal chunks, hardly wider than `width`."""
  number = -(-width // chunk)
  return number, -(-width // max(number, 1))


def _score(model, params, tokens, positions, cache) -> Block:
  """Keys and values of consecutive tokens, `[B, T]`, after a cache."""
  order = positions - positions[:, :1]
  empty = cache_lib.init_block(cache, tokens.shape[1])
  result = model.forward(params, tokens, positions, cache, empty, 0,
                         order[:, :, None] >= order[:, None])
  _check(result, tokens, model.vocab_size, empty)
  return result[1]


def _check_cache(cache, batch, slots):
  """Raises ValueError, while it is traced, unless a new cache is as asked. A
  smaller one would be overwritten, or would end the texts, without a word."""
  if not isinstance(cache, Cache):
    raise ValueError("LanguageModel.init_cache returned an object of type "
                     f"{type(cache).__name__}: a dj.Cache is needed.")
  for name, arrays, axis, form in (
      ("keys", cache.keys, cache_lib.KEY_SLOTS, "[..., B, H, C, S]"),
      ("values", cache.values, cache_lib.VALUE_SLOTS, "[..., B, H, S, C]")):
    if not isinstance(arrays, tuple):
      raise ValueError(f"LanguageModel.init_cache: {name} are of type "
                       f"{type(arrays).__name__}: a tuple is needed.")
    for x in arrays:
      if x.ndim < 4 or (x.shape[cache_lib.ROW_AXIS], x.shape[axis]) != (
          batch, slots):
        raise ValueError(f"LanguageModel.init_cache: {name} of shape {x.shape}:"
                         f" {form} of B={batch}, S={slots} is needed.")
  if not isinstance(cache.features, dict):
    raise ValueError("LanguageModel.init_cache: features are of type "
                     f"{type(cache.features).__name__}: a dict is needed, such "
                     "as {dj.HIDDEN_STATES: (array,)}.")
  for name, arrays in cache.features.items():
    for x in jax.tree.leaves(arrays):
      if x.shape[:2] != (batch, slots):
        raise ValueError(f"LanguageModel.init_cache: features[{name!r}] of "
                         f"shape {x.shape}: [B, S, ...] of B={batch}, "
                         f"S={slots} is needed.")
  shape, dtype = values.form(cache.length)
  if shape != (batch,) or dtype != jnp.int32:
    raise ValueError(f"LanguageModel.init_cache: length of shape {shape} and "
                     f"type {dtype}: int32 of [B]=({batch},) is needed.")


def _check(result, tokens, vocab_size, block):
  """Raises ValueError for a forward's wrong results, while it is traced."""
  if not isinstance(result, tuple) or len(result) != 2:
    raise ValueError("LanguageModel.forward returned an object of type "
                     f"{type(result).__name__}: (logits, block) is needed.")
  logits, new = result
  shape = (*tokens.shape, vocab_size)
  got, dtype = values.form(logits)
  if got != shape or not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"LanguageModel.forward returned logits of shape {got} "
                     f"and type {dtype}: floats of [B, T, V]={shape} are "
                     "needed.")
  if jax.tree.map(values.form, new) != jax.tree.map(values.form, block):
    raise ValueError("LanguageModel.forward returned a block of other shapes "
                     "or types than the one that it was given.")
