"""RSD-C (arXiv 2402.14160, section 3.2): constant branching factors."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(branching=(2, 2)),
            dict(branching=(2, 2), verification="layer"),
            dict(branching=(2, 2), verification="conditional_ot"),
            dict(branching=(2, 2), verification="rheo"),
            dict(branching=(2, 2), verification="shared_gumbel"))


def make(branching, verification: str = verifiers.USUAL,
         lossy: bool = False) -> Method:
  """Makes RSD-C: siblings by Gumbel-Top-k, recursive rejection sampling.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1.
    verification: any of `verifiers.RULES`.
    lossy: whether it may be one of `verifiers.LOSSY`, over a tree of the most
      probable children.
  """
  branching = values.integers("branching", branching)
  values.check_positive("depth of branching", len(branching))
  suffix, verifier, draws = verifiers.of_name(verification,
                                              expanders.OF_FIXED_TREES)
  return Method(f"rsd_c({'-'.join(map(str, branching))}{suffix})",
                sampled=verifiers.pair(
                    expanders.product_tree(branching, draws), verifier, lossy),
                greedy=verifiers.pair(expanders.top_k(branching),
                                      verifiers.match()))
