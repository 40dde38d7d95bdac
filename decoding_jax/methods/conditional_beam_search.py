"""Beam search for p(text | attribute) with a classifier (arXiv 2311.08817)."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.search import beam, level_search, reward_states
from decoding_jax.search import texts as texts_lib
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_beams=3, num_candidates=2),)


def make(num_beams: int, num_candidates: int, weight: float = 1.0,
         logits: bool = False) -> Method:
  """Makes beam search on log p(x) + log p(a | x), an approximate mode given a.

  The classifier is the reward: its value is log p(a | x) of the text so far, a
  an attribute such as a length or a style. The most probable tokens of each
  beam are classified, and the W best texts stay. With beams for all texts and
  all tokens classified the result is the most probable text that has the
  attribute, if p(a | x) of whole texts is right.

  Args:
    num_beams: W.
    num_candidates: k, tokens after each beam that are classified.
    weight: of the classifier; 0 gives beam search if k is at least W.
    logits: whether the reward is a logit, such as the output of a reward model
      of preferences, which is trained to classify: log p(a | x) is then the
      logarithm of its sigmoid.

  Returns:
    The method; `stats.extra` has all beams, see `level_search.decoder`, their
    sums as `beam_scores`, and `reward_calls [B]`.
  """
  values.check_positives(num_beams=num_beams, num_candidates=num_candidates)
  values.check_number("weight", weight)
  level = level_search.Level(
      functools.partial(_expand, num_candidates, weight, bool(logits)),
      level_search.score,
      needs_reward=True, init=_init, select=_select)
  decoder = level_search.decoder(level, num_beams, num_candidates)
  suffix = ", logits" if logits else ""
  return Method(
      f"conditional_beam_search({num_beams}, {num_candidates}{suffix})",
      sampled=decoder, greedy=decoder)


def _init(context):
  return reward_states.init(context), {
      "reward_calls": jnp.zeros_like(context.prompt_lengths)}


def _expand(num_candidates, weight, logits, keys, context, log_probs, texts,
            width):
  del keys
  own, tokens = sampling.top_k(log_probs, num_candidates)
  valid = jnp.broadcast_to(texts.alive[..., None], tokens.shape)

  def classify(tokens, valid):
    value = reward_states.value(context, reward_states.advance(
        context, texts.state, tokens, valid))
    return jax.nn.log_sigmoid(value) if logits else value

  classes = jax.vmap(classify, in_axes=2, out_axes=2)(tokens, valid)
  totals = texts.beam.log_probs[..., None] + own
  # A token of probability 0 stays impossible, whatever its class; and 0 times
  # a class of -inf would be NaN.
  scores = jnp.where(totals > -jnp.inf,
                     totals + weight * classes if weight else totals, -jnp.inf)
  tokens, parents, beams = jax.vmap(
      lambda *row: beam.keep_best(width, *row))(tokens, totals, scores)
  calls = num_candidates * texts.alive.sum(axis=1, dtype=jnp.int32)
  return tokens, parents, beams, {
      "reward_calls": texts.counts["reward_calls"] + calls}


def _select(keys, i, context, texts):
  del keys
  return texts.replace(state=reward_states.advance(
      context, texts.state, texts_lib.newest(texts), texts.lengths == i + 1))
