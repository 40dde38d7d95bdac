"""SpecTr (arXiv 2310.15141): independent paths, K-SEQ."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method

EXAMPLES = (dict(num_paths=2, depth=2),)


def make(num_paths: int, depth: int) -> Method:
  """Makes SpecTr: paths with replacement, sequential selection.

  Args:
    num_paths: drafted paths.
    depth: tokens of a path.
  """
  # At temperature 0 independent paths would all be the same one.
  return Method(f"spectr({num_paths}x{depth})",
                sampled=verifiers.pair(expanders.iid_paths(num_paths, depth),
                                       verifiers.k_seq()),
                greedy=verifiers.pair(expanders.top_beam(num_paths, depth),
                                      verifiers.match()))
