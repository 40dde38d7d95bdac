"""RSD-S (arXiv 2402.14160, section 3.2): stochastic beam search."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method

EXAMPLES = (dict(width=3, depth=2),
            dict(width=3, depth=2, verification="traversal"))


def make(width: int, depth: int, verification: str = "recursive") -> Method:
  """Makes RSD-S: paths without replacement, recursive rejection sampling.

  Args:
    width: nodes of a level.
    depth: levels.
    verification: "recursive"; "traversal" (arXiv 2505.12398); "layer", as
      traversal but level by level; or "shared_gumbel" (arXiv 2408.07978), whose
      text does not depend on the drafts.

  Returns:
    The method.

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  suffix, verifier = verifiers.of_name(verification)
  return Method(f"rsd_s({width}x{depth}{suffix})",
                sampled=verifiers.pair(expanders.stochastic_beam(
                    width, depth, verifier.shared_noise), verifier),
                greedy=verifiers.pair(expanders.top_beam(width, depth),
                                      verifiers.match()))
