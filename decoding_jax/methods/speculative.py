"""Speculative decoding, SD (arXiv 2211.17192, 2302.01318): one chain."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(depth=2), dict(depth=2, verification="block"))


def make(depth: int, verification: str = "token") -> Method:
  """Makes speculative decoding: a chain and rejection sampling.

  It is the tree with one child a node.

  Args:
    depth: drafted tokens.
    verification: "token", or "block" (arXiv 2403.10444); "conditional_ot"
      (arXiv 2605.04543) accepts as many as "block" does; the text of
      "shared_gumbel" (arXiv 2408.07978) does not depend on the drafts.

  Returns:
    The method.

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  values.check_positive("depth", depth)
  branching = (1,) * depth
  suffix, verifier = verifiers.of_name(verification, verifiers.OF_CHAINS)
  drafts = (expanders.greedy_and_sample(branching) if verifier.one_sampled
            else expanders.gumbel_top_k(branching, verifier.shared_noise))
  return Method(f"speculative({depth}{suffix})",
                sampled=verifiers.pair(drafts, verifier),
                greedy=verifiers.pair(expanders.top_k(branching),
                                      verifiers.match()))
