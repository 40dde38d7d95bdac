"""Particles under a test of texts, by rejection (AWRS, arXiv 2504.05410)."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import random, vocabulary
from decoding_jax.search import awrs, beam, level_search, particles
from decoding_jax.search import reward_states, texts as texts_lib
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_particles=3),)


def make(num_particles: int, threshold: float = 1.0,
         resample_below: float = 0.5) -> Method:
  """Makes sequential Monte Carlo over texts whose every prefix passes a test.

  A text passes while its reward is at least `threshold`: 1 for
  `rewards.banned`. A particle's next token is drawn by adaptive weighted
  rejection sampling: few tokens are tested, where a mask would need the reward
  after each token of the vocabulary; see `search.awrs`. The rest is as in
  `particles`: the text is drawn among W particles by their weights, and its
  distribution becomes the target's given that all prefixes pass. For
  temperatures above 0.

  Args:
    num_particles: W.
    threshold: of the reward.
    resample_below: effective sample size, over W, below which a row resamples.

  Returns:
    The method; `stats.extra` is as in `particles`, its `reward_calls [B]` count
    the tokens that were tested.
  """
  values.check_positive("num_particles", num_particles)
  values.check_number("threshold", threshold)
  values.check_number("resample_below", resample_below, 0.0, 1.0)
  level = level_search.Level(
      functools.partial(_expand, threshold), particles.draw_one,
      needs_reward=True, init=_init,
      select=functools.partial(_select, resample_below))
  return Method(f"awrs({num_particles}, {threshold:g})", greedy=None,
                sampled=level_search.decoder(level, num_particles, 1))


def _init(context):
  counts = {**particles.init_counts(context),
            "reward_calls": jnp.zeros_like(context.prompt_lengths)}
  return reward_states.init(context), counts


def _expand(threshold, keys, context, log_probs, texts, width):
  parents = jnp.minimum(jnp.arange(width, dtype=jnp.int32),
                        log_probs.shape[1] - 1)
  take = lambda x: x[:, parents]
  log_probs, alive = take(log_probs), take(texts.alive)
  states = jax.tree.map(take, texts.state)
  noise = jax.vmap(lambda key: jax.vmap(lambda key: vocabulary.gumbel(
      key, log_probs.shape[-1]))(random.split(key, width)))(keys)

  def passes(tokens):
    after = reward_states.advance(context, states, tokens,
                                  jnp.ones_like(alive))
    return reward_states.value(context, after) >= threshold

  drawn = awrs.draw(log_probs + noise, log_probs, passes, alive)
  # Of a text that has ended the end follows, and it costs nothing.
  tokens = jnp.where(alive, drawn.tokens, jnp.maximum(context.eos_id[0], 0))
  factors = jnp.where(alive, drawn.log_weights, 0.0)
  own = vocabulary.take(log_probs, tokens[..., None])[..., 0]
  # Without a token that passes the text is at its end.
  totals = take(texts.beam.log_probs) + jnp.where(factors > -jnp.inf, own,
                                                  -jnp.inf)
  scores = particles.times(take(texts.beam.scores), factors)
  counts = {**texts.counts, "reward_calls": texts.counts["reward_calls"] +
            drawn.checks.sum(axis=1, dtype=jnp.int32)}
  return (tokens, jnp.broadcast_to(parents, tokens.shape),
          beam.Beam(totals, scores), counts)


def _select(resample_below, keys, i, context, texts):
  states = reward_states.advance(context, texts.state, texts_lib.newest(texts),
                                 texts.lengths == i + 1)
  return particles.resample(keys, texts.replace(state=states), resample_below)
