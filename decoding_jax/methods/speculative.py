"""Speculative decoding, SD (arXiv 2211.17192, 2302.01318): one chain."""

import functools

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values


@functools.lru_cache(maxsize=None)
def make(depth: int, verification: str = "token") -> Method:
  """Drafts a chain; recursive rejection of one child is plain rejection.

  Args:
    depth: drafted tokens.
    verification: "token", or "block" (arXiv 2403.10444).

  Returns:
    The method.

  Raises:
    ValueError: if the depth is not a positive integer, or for another
      verification.
  """
  values.check_positive("depth", depth)
  branching = (1,) * depth
  suffix, verifier = verifiers.of_name(verification, ("token", "block"))
  return Method(f"speculative({depth}{suffix})",
                sampled=verifiers.pair(expanders.gumbel_top_k(branching),
                                       verifier),
                greedy=verifiers.pair(expanders.top_k(branching),
                                      verifiers.match()))
