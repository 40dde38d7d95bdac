"""RSD-S (arXiv 2402.14160, section 3.2): stochastic beam search."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method

EXAMPLES = (dict(width=3, depth=2),
            dict(width=3, depth=2, verification="traversal"),
            dict(width=3, depth=2, verification="rheo"))


def make(width: int, depth: int, verification: str = verifiers.USUAL,
         lossy: bool = False) -> Method:
  """Makes RSD-S: paths without replacement, recursive rejection sampling.

  Args:
    width: nodes of a level.
    depth: levels.
    verification: any of `verifiers.RULES` whose children can form a beam.
    lossy: whether it may be one of `verifiers.LOSSY`, over a beam search.
  """
  suffix, verifier, draws = verifiers.of_name(verification, expanders.OF_BEAMS)
  return Method(f"rsd_s({width}x{depth}{suffix})",
                sampled=verifiers.pair(
                    expanders.beam_tree(width, depth, draws), verifier, lossy),
                greedy=verifiers.pair(expanders.top_beam(width, depth),
                                      verifiers.match()))
