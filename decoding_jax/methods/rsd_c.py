"""RSD-C (arXiv 2402.14160, section 3.2): constant branching factors."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(branching=(2, 2)),
            dict(branching=(2, 2), verification="layer"),
            dict(branching=(2, 2), verification="conditional_ot"),
            dict(branching=(2, 2), verification="shared_gumbel"))


def make(branching, verification: str = "recursive") -> Method:
  """Makes RSD-C: siblings by Gumbel-Top-k, recursive rejection sampling.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1.
    verification: "recursive"; "traversal" (arXiv 2505.12398); "layer", as
      traversal but level by level; "conditional_ot" (arXiv 2605.04543), whose
      drafts are greedy but for one; or "shared_gumbel" (arXiv 2408.07978),
      whose text does not depend on the drafts.

  Returns:
    The method.

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  branching = values.integers("branching", branching)
  values.check_positive("depth of branching", len(branching))
  suffix, verifier = verifiers.of_name(verification,
                                       verifiers.OF_FIXED_TREES)
  drafts = (expanders.greedy_and_sample(branching) if verifier.one_sampled
            else expanders.gumbel_top_k(branching, verifier.shared_noise))
  return Method(f"rsd_c({'-'.join(map(str, branching))}{suffix})",
                sampled=verifiers.pair(drafts, verifier),
                greedy=verifiers.pair(expanders.top_k(branching),
                                      verifiers.match()))
