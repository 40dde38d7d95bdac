"""SpecTr (arXiv 2310.15141): independent paths, K-SEQ."""

import functools

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method


@functools.lru_cache(maxsize=None)
def make(num_paths: int, depth: int) -> Method:
  """Paths with replacement, sequential selection.

  Args:
    num_paths: paths.
    depth: tokens of a path.

  Returns:
    The method.

  Raises:
    ValueError: if a size is not a positive integer.
  """
  # Without noise, independent paths would all be the same one.
  return Method(f"spectr({num_paths}x{depth})",
                sampled=verifiers.pair(expanders.iid_paths(num_paths, depth),
                                       verifiers.k_seq()),
                greedy=verifiers.pair(expanders.top_beam(num_paths, depth),
                                      verifiers.match()))
