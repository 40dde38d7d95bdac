"""RSD-C (arXiv 2402.14160, section 3.2): constant branching factors."""

import functools

from decoding_jax import draft, options, verify
from decoding_jax.types import Method


def make(branching, verification: str = "recursive") -> Method:
  """Siblings by Gumbel-Top-k, recursive rejection sampling.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1.
    verification: "recursive", or "traversal" (arXiv 2505.12398).

  Returns:
    The method.

  Raises:
    ValueError: if there is no level, or a number is not a positive integer, or
      for another verification.
  """
  return _make(options.integers("branching", branching), verification)


@functools.lru_cache(maxsize=None)
def _make(branching, verification):
  options.check_positive("depth of branching", len(branching))
  suffix, verifier = verify.of_name(verification)
  return Method(f"rsd_c({'-'.join(map(str, branching))}{suffix})",
                sampled=verify.pair(draft.gumbel_top_k(branching),
                                    verifier),
                greedy=verify.pair(draft.top_k(branching), verify.match()))
