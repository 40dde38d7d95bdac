"""Speculative decoding, SD (arXiv 2211.17192, 2302.01318): one chain."""

import functools

from decoding_jax import draft, options, verify
from decoding_jax.types import Method


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
  options.check_positive("depth", depth)
  branching = (1,) * depth
  suffix, verifier = verify.of_name(verification, ("token", "block"))
  return Method(f"speculative({depth}{suffix})",
                sampled=verify.pair(draft.gumbel_top_k(branching),
                                    verifier),
                greedy=verify.pair(draft.top_k(branching), verify.match()))
