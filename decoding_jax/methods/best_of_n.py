"""Best of n: the sample of the highest reward."""

import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import buffers, random
from decoding_jax.search import beam, level_search
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_samples=3),)


def make(num_samples: int) -> Method:
  """Makes best of n: draws n texts, and takes that of the highest reward.

  Of equal rewards the more probable text is taken. For temperatures above 0.

  Args:
    num_samples: n.

  Returns:
    The method; `stats.extra` has all samples, see `level_search.decoder`, and
    `reward_calls [B]`.

  Raises:
    ValueError: if n is not a positive integer.
  """
  values.check_positive("num_samples", num_samples)
  level = level_search.Level(_expand, level_search.reward, needs_reward=True)
  decoder = level_search.decoder(level, num_samples)
  return Method(f"best_of_n({num_samples})",
                sampled=decoder._replace(max_samples_per_node=1), greedy=None)


def _expand(key, log_probs, alive, beams, width):
  del alive
  # The first level has one parent, the root.
  parents = jnp.minimum(jnp.arange(width, dtype=jnp.int32), len(log_probs) - 1)
  keys, log_probs = random.split(key, width), log_probs[parents]
  tokens = jax.vmap(sampling.draw)(keys, log_probs)[:, None]
  totals = beams.log_probs[parents] + buffers.take_along(
      log_probs, tokens, axis=1)[:, 0]
  return tokens[:, 0], parents, beam.Beam(totals, totals)
