"""RSD-C (arXiv 2402.14160, section 3.2): constant branching factors."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(branching=(2, 2)),)


def make(branching, verification: str = "recursive") -> Method:
  """Makes RSD-C: siblings by Gumbel-Top-k, recursive rejection sampling.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1.
    verification: "recursive", or "traversal" (arXiv 2505.12398).

  Returns:
    The method.

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  branching = values.integers("branching", branching)
  values.check_positive("depth of branching", len(branching))
  suffix, verifier = verifiers.of_name(verification)
  return Method(f"rsd_c({'-'.join(map(str, branching))}{suffix})",
                sampled=verifiers.pair(expanders.gumbel_top_k(branching),
                                       verifier),
                greedy=verifiers.pair(expanders.top_k(branching),
                                      verifiers.match()))
