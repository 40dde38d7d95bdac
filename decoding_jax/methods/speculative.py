"""Speculative decoding, SD (arXiv 2211.17192, 2302.01318): one chain."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(depth=2), dict(depth=2, verification="traversal"))


def make(depth: int, verification: str = verifiers.USUAL,
         lossy: bool = False) -> Method:
  """Makes speculative decoding: a chain and rejection sampling.

  It is the tree with one child a node.

  Args:
    depth: drafted tokens.
    verification: any of `verifiers.RULES`. Of chains "recursive" is
      verification token by token ("token"), "traversal" is block verification
      ("block", arXiv 2403.10444).
    lossy: whether it may be one of `verifiers.LOSSY`, over a greedy chain.
  """
  values.check_positive("depth", depth)
  branching = (1,) * depth
  suffix, verifier, draws = verifiers.of_name(verification,
                                              expanders.OF_FIXED_TREES)
  return Method(f"speculative({depth}{suffix})",
                sampled=verifiers.pair(
                    expanders.product_tree(branching, draws), verifier, lossy),
                greedy=verifiers.pair(expanders.top_k(branching),
                                      verifiers.match()))
