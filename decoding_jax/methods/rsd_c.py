"""RSD-C (arXiv 2402.14160, section 3.2): constant branching factors."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(branching=(2, 2)),
            dict(branching=(2, 2), verification="layer"),
            dict(branching=(2, 2), verification="conditional_ot"))


def make(branching, verification: str = "recursive") -> Method:
  """Makes RSD-C: siblings by Gumbel-Top-k, recursive rejection sampling.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1.
    verification: "recursive"; "traversal" (arXiv 2505.12398); "layer", as
      traversal but level by level; or "conditional_ot" (arXiv 2605.04543),
      whose drafts are greedy but for one.

  Returns:
    The method.

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  branching = values.integers("branching", branching)
  values.check_positive("depth of branching", len(branching))
  suffix, verifier = verifiers.of_name(verification,
                                       verifiers.OF_FIXED_TREES)
  drafts = (expanders.greedy_and_sample if verifier.one_sampled
            else expanders.gumbel_top_k)
  return Method(f"rsd_c({'-'.join(map(str, branching))}{suffix})",
                sampled=verifiers.pair(drafts(branching), verifier),
                greedy=verifiers.pair(expanders.top_k(branching),
                                      verifiers.match()))
