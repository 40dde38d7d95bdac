"""Speculative decoding, SD (arXiv 2211.17192, 2302.01318): one chain."""

import functools

from decoding_jax import draft, options, verify
from decoding_jax.types import Method


@functools.lru_cache(maxsize=None)
def make(depth: int) -> Method:
  """Drafts a chain; recursive rejection of one child is plain rejection.

  Args:
    depth: drafted tokens.

  Returns:
    The method.

  Raises:
    ValueError: if the depth is not a positive integer.
  """
  options.check_positive("depth", depth)
  branching = (1,) * depth
  return Method(f"speculative({depth})",
                sampled=verify.pair(draft.gumbel_top_k(branching),
                                    verify.recursive(replacement=False)),
                greedy=verify.pair(draft.top_k(branching), verify.match()))
