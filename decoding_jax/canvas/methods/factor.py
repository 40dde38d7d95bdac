"""Factor decoding: the more positions at once, the surer each has to be."""

import jax.numpy as jnp

from decoding_jax.canvas import rules
from decoding_jax.canvas.types import Method

EXAMPLES = (dict(bound=1.0),)


def make(bound: float = 1.0) -> Method:
  """Makes Fast-dLLM's factor decoding (arXiv 2505.22618, section 3.3).

  The n most confident positions are filled, for the largest n with
  (n + 1) (1 - c_n) < f, where c_n is the n-th largest confidence. Theorem 1
  there: if (n + 1) (1 - c) <= 1, the most probable tokens of n positions
  together are the most probable ones of each. Two positions of confidence 0.7
  have 3 * 0.3 = 0.9 < 1 and are filled at once; of 0.6, 1.2, one after the
  other.

  Args:
    bound: f, positive.
  """
  if not bound > 0:
    raise ValueError(f"bound={bound}: a positive number is needed.")

  def rule(params, confidence, eligible, start):
    del params, start
    # Confidences descend with n, so that those that fit are the first ones.
    numbers = rules.ranks(confidence, eligible) + 1
    fits = (numbers + 1).astype(jnp.float32) * (1 - confidence) < bound
    worst = jnp.where(eligible & ~fits, numbers, len(confidence) + 1).min()
    return rules.at_least_one(numbers < worst, confidence, eligible)

  return Method(f"factor({bound:g})", rule)
