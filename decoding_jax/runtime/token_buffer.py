"""The text of each row: where it ends, and how it grows."""

import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax.kernels import vocabulary
from decoding_jax.types import Context, DecodeState, NONE


def ends(tokens, eos_id):
  """Returns `[...]` bool, which `tokens [...]` end a text by `eos_id [E]`."""
  eos_id = jnp.expand_dims(eos_id, range(tokens.ndim))
  return (tokens[..., None] == eos_id).any(axis=-1)


def go_on(context: Context, alive, tokens, room=None, pause=None):
  """Returns `[B, W]` bool, which texts go on after their newest tokens.

  A text ends by a token of `context.eos_id`, or where no `room`, `[B, W]` or
  `[B, 1]`, is left for more; and rests after a token of `pause`.
  """
  alive = alive & ~ends(tokens, context.eos_id)
  if room is not None:
    alive &= room > 0
  return alive if pause is None else alive & ~ends(
      tokens, jnp.atleast_1d(jnp.asarray(pause)))


def cut(state: DecodeState, tokens, count, eos_id):
  """Cuts new tokens at the end of the text and of the budget.

  Args:
    state: what was committed so far.
    tokens: `[B, T]` int32, what would follow.
    count: `[B]` int32, how many of them.
    eos_id: `[E]` int32.

  Returns:
    How many of them count `[B]`, none in a row that is done, and done `[B]`.
  """
  order = jnp.arange(tokens.shape[1])[None]
  count = jnp.minimum(count, state.limit - state.length)
  last = ends(tokens, eos_id) & (order < count[:, None])
  ended = last.any(axis=1)
  count = jnp.where(ended, jnp.argmax(last, axis=1) + 1, count)
  count = jnp.where(state.done, 0, count).astype(jnp.int32)
  # A row is done by a token that ends its text, or by the last of its budget.
  return count, state.done | ended | (state.length + count == state.limit)


def known(tokens, vocab_size):
  """Returns tokens, NONE for what is not in the vocabulary."""
  tokens = jnp.asarray(tokens, jnp.int32)
  return jnp.where((tokens >= 0) & (tokens < vocab_size), tokens, NONE)


def newest(state: DecodeState, count: int):
  """`[B, count]` int32, the last committed tokens, the newest at the end.

  A shorter text is filled up at the front with its first token.
  """
  columns = state.length[:, None] + jnp.arange(-count, 0)[None]
  return kernels.take_along(state.tokens, jnp.maximum(columns, 0), axis=1)


def append(buffer, length, values, count):
  """Writes the first `count [B]` of `values [B, T]` after the length `[B]`."""
  order = jnp.arange(values.shape[1])[None]
  # No column twice, outside of the buffer either: an accelerator then writes
  # all of them at once.
  columns = order + jnp.where(order < count[:, None], length[:, None],
                              buffer.shape[1])
  rows = jnp.arange(len(buffer))[:, None]
  return buffer.at[rows, columns].set(values, mode="drop", unique_indices=True)


def result(state: DecodeState):
  """Returns each row's text and counts, by name."""
  return {"tokens": state.tokens, "log_probs": state.log_probs,
          "length": state.length, "stats": state.stats, "top": state.top}


def keep_done(state: DecodeState, new: DecodeState) -> DecodeState:
  """Returns the new state, with old text and counts of rows that were done."""
  def keep(old, new):
    done = state.done.reshape(-1, *[1] * (new.ndim - 1))
    return jnp.where(done, old, new)

  return new.replace(**jax.tree.map(keep, result(state), result(new)))


def commit(state: DecodeState, tokens, log_probs, count, eos_id):
  """Commits new tokens to the text, cut at its end and the budget's.

  Args:
    state: what was committed so far.
    tokens: `[B, T]` int32, what would follow.
    log_probs: `[B, T]` float32, the target's own.
    count: `[B]` int32, how many of them.
    eos_id: `[E]` int32.

  Returns:
    The state, its caches, counts and carry as they were; and how many tokens
    were committed, `[B]` int32.
  """
  count, done = cut(state, tokens, count, eos_id)
  return state.replace(
      step=state.step + 1, length=state.length + count, done=done,
      tokens=append(state.tokens, state.length, tokens, count),
      log_probs=append(state.log_probs, state.length, log_probs, count)), count


def log_probs(logits, tokens):
  """Returns `[...]` float32, a model's own log-probabilities of `tokens [...]`.

  Temperature 1, nothing cut off; logits are `[..., V]`.
  """
  chosen = vocabulary.take(logits, tokens[..., None])
  largest, log_mass = kernels.log_normalizer(logits.astype(jnp.float32))
  return (chosen.astype(jnp.float32) - largest - log_mass)[..., 0]
