"""SpecInfer (arXiv 2305.09781): independent paths, multi-round rejection."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method

EXAMPLES = (dict(num_paths=2, depth=2),)


def make(num_paths: int, depth: int) -> Method:
  """Makes SpecInfer: paths and recursive rejection with replacement.

  Args:
    num_paths: drafted paths.
    depth: tokens of a path.

  Returns:
    The method.

  Raises:
    ValueError: naming the size, its value and what is allowed.
  """
  # At temperature 0 independent paths would all be the same one.
  return Method(f"specinfer({num_paths}x{depth})",
                sampled=verifiers.pair(expanders.iid_paths(num_paths, depth),
                                       verifiers.recursive(replacement=True)),
                greedy=verifiers.pair(expanders.top_beam(num_paths, depth),
                                      verifiers.match()))
