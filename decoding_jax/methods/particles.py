"""Particles: sequential Monte Carlo over texts (arXiv 2504.13139)."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.search import beam, level_search, particles, reward_states
from decoding_jax.search import texts as texts_lib
from decoding_jax.types import LogitsProcessor, Method
from decoding_jax.validation import protocols, values

EXAMPLES = (dict(num_particles=3),)


def make(num_particles: int, reward_weight: float = 1.0,
         resample_below: float = 0.5,
         constraint: LogitsProcessor | None = None) -> Method:
  """Makes sequential Monte Carlo: texts of probability p(x) exp(beta R(x)) / Z.

  Each of W particles draws its next token from the target, and its weight is
  multiplied by the rise of exp(beta R), R the reward of the text so far. With a
  constraint tokens are drawn of those that it allows, and the weight is
  multiplied by their mass: Z counts the texts that the constraint allows, and
  no text is favoured because its tokens had few alternatives. Rows whose
  effective sample size is small are resampled. The text is drawn among the
  particles by their weights; as W grows its distribution becomes the one above.
  Texts that are cut off by `max_new_tokens` count as texts. For temperatures
  above 0.

  Args:
    num_particles: W.
    reward_weight: beta; 0 for no reward.
    resample_below: effective sample size, over W, below which a row resamples;
      0 for never, 1 for whenever weights differ.
    constraint: forbids the tokens to which it gives logits of -inf; its other
      changes are left out. Its parameters are `draft_params` of `generate`.
      Unlike a processed target, it is exact for the distribution of all texts.

  Returns:
    The method; `stats.extra` has all particles, see `level_search.decoder`,
    their log-weights as `beam_scores`, `resampled [B]`, and `log_normalizer
    [B]`, whose exponential is an unbiased estimate of Z; -inf if no particle
    is allowed, in which case the text means nothing.
  """
  values.check_positive("num_particles", num_particles)
  values.check_number("reward_weight", reward_weight)
  values.check_number("resample_below", resample_below, 0.0, 1.0)
  protocols.check("constraint", LogitsProcessor, constraint, True)
  level = level_search.Level(
      functools.partial(_expand, constraint), particles.draw_one,
      needs_reward=bool(reward_weight),
      init=functools.partial(_init, constraint, reward_weight),
      select=functools.partial(_select, constraint, reward_weight,
                               resample_below))
  return Method(f"particles({num_particles})", greedy=None,
                sampled=level_search.decoder(level, num_particles, 1))


def _init(constraint, reward_weight, context):
  """Returns the states of constraint and reward, and R of empty texts as 0."""
  state, counts = {}, particles.init_counts(context)
  batch = len(context.prompts)
  if constraint:
    state["constraint"] = _after_prompt(constraint, context)
  if reward_weight:
    state["reward"] = reward_states.init(context)
    state["value"] = jnp.zeros((batch, 1), jnp.float32)
    counts["reward_calls"] = jnp.zeros(batch, jnp.int32)
  return state, counts


def _after_prompt(constraint, context):
  """Returns the states of a constraint before the first token, `[B, 1, ...]`.
  """
  params, (batch, width) = context.draft_params, context.prompts.shape
  init = constraint.init(params)
  if not constraint.reads_prompt:
    return jax.tree.map(lambda x: jnp.broadcast_to(
        x, (batch, 1, *jnp.shape(x))), init)

  def read(tokens, length):
    def step(state, x):
      new = constraint.advance(params, state, x[0])
      return jax.tree.map(lambda a, b: jnp.where(x[1], a, b), new, state), None

    return jax.lax.scan(step, init, (tokens, jnp.arange(width) < length))[0]

  states = jax.vmap(read)(context.prompts, context.prompt_lengths)
  return jax.tree.map(lambda x: x[:, None], states)


def _expand(constraint, keys, context, log_probs, texts, width):
  """Draws a token after each particle; multiplies by the mass it is drawn of.
  """
  if not constraint:
    tokens, parents, drawn, counts = level_search.of_beams(beam.independent)(
        keys, context, log_probs, texts, width)
    weights = jax.vmap(lambda x, i: x[i])(texts.beam.scores, parents)
    return tokens, parents, drawn.replace(scores=weights), counts
  process = functools.partial(constraint.process, context.draft_params)
  logits = jax.vmap(jax.vmap(process))(texts.state["constraint"], log_probs)
  allowed = (logits > -jnp.inf) | ~texts.alive[..., None]
  masked = jnp.where(allowed, log_probs, -jnp.inf)
  tokens, parents, drawn, counts = level_search.of_beams(beam.independent)(
      keys, context, masked, texts, width)
  weights = particles.times(texts.beam.scores,
                            jax.nn.logsumexp(masked, axis=-1))
  return tokens, parents, drawn.replace(scores=jax.vmap(lambda x, i: x[i])(
      weights, parents)), counts


def _select(constraint, reward_weight, resample_below, keys, i, context, texts):
  """Brings states and weights up to date, and resamples."""
  grown, newest = texts.lengths == i + 1, texts_lib.newest(texts)
  state, weights, counts = dict(texts.state), texts.beam.scores, texts.counts
  if constraint:
    state["constraint"] = jax.tree.map(
        lambda new, old: jnp.where(grown.reshape(*grown.shape, *(1,) * (
            new.ndim - 2)), new, old),
        jax.vmap(jax.vmap(functools.partial(
            constraint.advance, context.draft_params)))(
                state["constraint"], newest), state["constraint"])
  if reward_weight:
    state["reward"] = reward_states.advance(context, state["reward"], newest,
                                            grown)
    value = reward_weight * reward_states.value(context, state["reward"])
    # Of a value of -inf before, the weight is 0 already.
    rise = value - jnp.where(state["value"] > -jnp.inf, state["value"], 0.0)
    weights = jnp.where(grown, particles.times(weights, rise), weights)
    state["value"] = value
    counts = {**counts, "reward_calls": counts["reward_calls"] +
              grown.sum(axis=1, dtype=jnp.int32)}
  texts = texts.replace(state=state, counts=counts,
                        beam=texts.beam.replace(scores=weights))
  return particles.resample(keys, texts, resample_below)
