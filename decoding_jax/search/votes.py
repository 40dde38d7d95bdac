"""Majority votes among the texts of a row (self-consistency, 2203.11171)."""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.search import texts as texts_lib
from decoding_jax.search.texts import Texts
from decoding_jax.types import PAD
from decoding_jax.validation import values


def majority(answer_after: int | None):
  """Ranks texts by how many of the row give the same answer; see `count`."""
  def rank(keys, context, texts):
    del keys, context
    return count(texts, jnp.ones_like(texts.alive), answer_after)

  return rank


def majority_of_first(num_finished: int, answer_after: int | None):
  """Ranks by votes of the `num_finished` shortest texts that ended, or all."""
  def rank(keys, context, texts):
    del keys
    finished = texts_lib.ended(context, texts)
    order = jnp.lexsort((-texts.beam.log_probs, texts.lengths, ~finished),
                        axis=-1)
    voters = finished & (jnp.argsort(order, axis=-1) < num_finished)
    return count(texts, voters | ~finished.any(axis=1, keepdims=True),
                 answer_after)

  return rank


def count(texts: Texts, voters, answer_after: int | None = None):
  """Counts the votes of `voters [B, W]` for the answer of each text. The answer
  is what comes after the last `answer_after`, such as the token of "####";
  None: the whole text. -1 of a text that does not vote. A text without answer
  gets no vote."""
  tokens, order = texts.tokens, jnp.arange(texts.tokens.shape[-1])[None, None]
  start = jnp.zeros_like(texts.lengths)
  if answer_after is not None:
    marked = tokens == answer_after
    start = jnp.where(marked.any(axis=-1), 1 + jnp.max(
        jnp.where(marked, order, -1), axis=-1), texts.lengths)
  places = start[..., None] + order
  answers = jnp.where(places < texts.lengths[..., None], buffers.take_along(
      tokens, jnp.minimum(places, tokens.shape[-1] - 1), axis=-1), PAD)
  given = voters & (start < texts.lengths)
  same = jax.vmap(lambda x: (x[:, None] == x[None]).all(axis=-1))(answers)
  votes = (same & given[:, None] & given[..., None]).sum(axis=-1)
  return jnp.where(voters, votes.astype(jnp.float32), -1.0)


def check_answer_after(answer_after):
  """Raises ValueError unless the option is a token or None."""
  if answer_after is not None and not (
      values.is_integer(answer_after) and answer_after >= 0):
    raise ValueError(f"answer_after={answer_after!r}: the id of a token is "
                     "needed, or None.")
