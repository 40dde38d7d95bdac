"""RSD-S (arXiv 2402.14160, section 3.2): stochastic beam search."""

import functools

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method


@functools.lru_cache(maxsize=None)
def make(width: int, depth: int, verification: str = "recursive") -> Method:
  """Paths without replacement, recursive rejection sampling.

  Args:
    width: nodes of a level.
    depth: levels.
    verification: "recursive", or "traversal" (arXiv 2505.12398).

  Returns:
    The method.

  Raises:
    ValueError: if a size is not a positive integer, or for another
      verification.
  """
  suffix, verifier = verifiers.of_name(verification)
  return Method(f"rsd_s({width}x{depth}{suffix})",
                sampled=verifiers.pair(expanders.stochastic_beam(width, depth),
                                       verifier),
                greedy=verifiers.pair(expanders.top_beam(width, depth),
                                      verifiers.match()))
