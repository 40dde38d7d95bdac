"""Segment search (RankGen, arXiv 2205.09726): samples reranked as they grow."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.search import beam, level_search, texts as texts_lib
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_beams=2, num_samples=2, segment=3),)


def make(num_beams: int, num_samples: int, segment: int) -> Method:
  """Makes beam search over segments, by any reward.

  After each segment the W beams of the highest reward stay, and each goes on in
  n samples; a beam that has ended competes as the one that it is. The result is
  the text of the highest reward. One beam with a segment of `max_new_tokens` is
  `best_of_n`. For temperatures above 0.

  Args:
    num_beams: W.
    num_samples: n, of each beam.
    segment: tokens of a segment.

  Returns:
    The method; `stats.extra` has all W * n texts, see `level_search.decoder`,
    and `reward_calls [B]`.
  """
  values.check_positives(num_beams=num_beams, num_samples=num_samples,
                         segment=segment)
  level = level_search.Level(
      level_search.of_beams(beam.independent), _rank, needs_reward=True,
      init=functools.partial(_init, num_beams * num_samples),
      select=functools.partial(_select, num_beams, num_samples, segment))
  return Method(
      f"segment_search({num_beams}x{num_samples}, {segment})", greedy=None,
      sampled=level_search.decoder(level, num_beams * num_samples, 1))


def _init(width, context):
  """Returns as state which texts are copies of a text that has ended."""
  calls = level_search.count_rewards(width)(context)[1]
  return jnp.zeros((len(context.prompts), 1), bool), calls


def _rank(keys, context, texts):
  rewards = level_search.reward(keys, context, texts)
  return jnp.where(texts.state, -jnp.inf, rewards)


def _select(num_beams, num_samples, segment, keys, i, context, texts):
  order = jnp.arange(num_beams * num_samples, dtype=jnp.int32)[None]

  def best(texts):
    # Of equal rewards the earlier text is kept.
    _, kept = jax.lax.top_k(_rank(keys, context, texts), num_beams)
    # A row that has ended stays as it is, however long the others go on.
    goes_on = texts.alive.any(axis=1, keepdims=True)
    chosen = texts_lib.take(texts, jnp.where(
        goes_on, jnp.repeat(kept, num_samples, axis=1), order))
    copies = jnp.where(goes_on, ~chosen.alive & (order % num_samples > 0),
                       texts.state)
    calls = goes_on[:, 0].astype(jnp.int32) * order.size
    return chosen.replace(state=copies, counts={
        "reward_calls": texts.counts["reward_calls"] + calls})

  return jax.lax.cond((i + 1) % segment == 0, best, lambda texts: texts, texts)
