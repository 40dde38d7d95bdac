"""Particles: weighted samples that are resampled (sequential Monte Carlo).

The log-weight of a text is the score of its beam. A row resamples when its
effective sample size is small; its texts then get the mean weight, so the final
mean weight is an unbiased estimate of the normaliser (Chopin and
Papaspiliopoulos 2020, "An introduction to sequential Monte Carlo", chapter 10).
"""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import random
from decoding_jax.search import texts as texts_lib
from decoding_jax.search.texts import Texts
from decoding_jax.types import Context


def log_mean(log_weights):
  """Returns `[...]`, log of the mean of weights `[..., W]`; -inf if all are 0.
  """
  return jax.nn.logsumexp(log_weights, axis=-1) - jnp.log(
      jnp.float32(log_weights.shape[-1]))


def effective_sample_size(log_weights):
  """Returns (sum of weights)^2 over the sum of squares, `[...]` float32. 4
  equal weights give 4; 1, 1, 0, 0 give 2; 0 if all are 0."""
  peak = log_weights.max(axis=-1, keepdims=True)
  weights = jnp.exp(log_weights - jnp.where(peak > -jnp.inf, peak, 0.0))
  squares = (weights**2).sum(axis=-1)
  return jnp.where(squares > 0, weights.sum(axis=-1)**2 / jnp.where(
      squares > 0, squares, 1.0), 0.0)


def systematic(uniform, log_weights):
  """Draws parents `[W]`, ascending, by systematic resampling. Text i has W *
  w_i children on average, rounded down or up (Carpenter et al. 1999); with
  `uniform []` .5, weights .5, .25, .25, 0 have parents 0, 0, 1, 2."""
  size = log_weights.shape[-1]
  sums = jnp.cumsum(jnp.exp(log_weights - log_weights.max()))
  points = (uniform + jnp.arange(size, dtype=jnp.float32)) / size
  # Rounded up to 1, a point would be after the last text.
  points = jnp.minimum(points, 1 - 2.0**-24)
  # The last text of any weight, and all texts after it, end exactly at 1.
  before = (sums / sums[-1])[None] <= points[:, None]
  return before.sum(axis=1, dtype=jnp.int32)


def resample(keys, texts: Texts, threshold: float) -> Texts:
  """Resamples rows whose effective sample size is below `threshold` * W."""
  log_weights = texts.beam.scores
  size, mean = log_weights.shape[1], log_mean(log_weights)
  # A row that has ended stays as it is, however long the others go on; one
  # without any weight has nothing to take.
  resampled = (effective_sample_size(log_weights) < threshold * size) & (
      mean > -jnp.inf) & texts.alive.any(axis=1)
  uniforms = jax.vmap(lambda key: random.uniform(key, ()))(keys)
  parents = jnp.where(resampled[:, None],
                      jax.vmap(systematic)(uniforms, log_weights),
                      jnp.arange(size, dtype=jnp.int32)[None])
  taken = texts_lib.take(texts, parents)
  scores = jnp.where(resampled[:, None], mean[:, None], log_weights)
  counts = {**texts.counts, "log_normalizer": mean,
            "resampled": texts.counts["resampled"] +
            resampled.astype(jnp.int32)}
  return taken.replace(beam=taken.beam.replace(scores=scores), counts=counts)


def init_counts(context: Context):
  """Returns the counts that `resample` adds to, by name."""
  zeros = jnp.zeros_like(context.prompt_lengths)
  return {"log_normalizer": zeros.astype(jnp.float32), "resampled": zeros}


def draw_one(keys, context: Context, texts: Texts):
  """Draws the text that is the result, by weight: a `Level.rank`."""
  del context
  noise = jax.vmap(lambda key: random.gumbel(key, texts.lengths.shape[1]))(keys)
  return texts.beam.scores + noise


def times(log_weights, log_factors):
  """Returns the log of products; a weight of 0 stays 0."""
  dead = (log_weights == -jnp.inf) | (log_factors == -jnp.inf)
  return jnp.where(dead, -jnp.inf, log_weights + jnp.where(
      dead, 0.0, log_factors))
