"""SpecInfer (arXiv 2305.09781): independent paths, multi-round rejection."""

import functools

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method


@functools.lru_cache(maxsize=None)
def make(num_paths: int, depth: int) -> Method:
  """Paths with replacement, recursive rejection with replacement.

  Args:
    num_paths: paths.
    depth: tokens of a path.

  Returns:
    The method.

  Raises:
    ValueError: if a size is not a positive integer.
  """
  # Without noise, independent paths would all be the same one.
  return Method(f"specinfer({num_paths}x{depth})",
                sampled=verifiers.pair(expanders.iid_paths(num_paths, depth),
                                       verifiers.recursive(replacement=True)),
                greedy=verifiers.pair(expanders.top_beam(num_paths, depth),
                                      verifiers.match()))
