"""Confidences, by which positions are filled.

Each is a function `(log_probs [L, V], tokens [L]) -> [L]` float32 in [0, 1] of
the model's own distributions (temperature 1, nothing cut off but the mask) and
of the tokens that would be filled in.
"""

import jax.numpy as jnp

from decoding_jax import kernels


def probability(log_probs, tokens):
  """Returns the probabilities of the tokens (LLaDA, Fast-dLLM)."""
  return jnp.exp(kernels.take_along(log_probs, tokens[:, None], axis=1)[:, 0])


def largest(log_probs, tokens):
  """Returns the largest probabilities, whatever token was drawn.

  The order in which positions are filled then does not depend on the tokens
  drawn for them: one token a step is an exact sample of the model, in that
  order.
  """
  del tokens
  return jnp.exp(log_probs.max(axis=-1))


def margin(log_probs, tokens):
  """Returns how far the two most probable tokens are apart (Dream)."""
  del tokens
  best = jnp.exp(kernels.top_k(log_probs, 2)[0])
  return best[:, 0] - best[:, 1]


def certainty(log_probs, tokens):
  """Returns 1 less the entropy, as a share of the largest one (Dream)."""
  del tokens
  probs = jnp.exp(log_probs)
  entropy = -jnp.sum(jnp.where(probs > 0, probs * log_probs, 0), axis=-1)
  return 1 - entropy / jnp.log(jnp.float32(log_probs.shape[-1]))
