"""ADED (arXiv 2407.12021): the most probable texts of a table of tri-grams."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = ({"nodes": 5, "depth": 2, "branching": 2, "buckets": 64},)


def make(nodes: int, depth: int, branching: int = 8,
         buckets: int = 16384) -> Method:
  """Makes ADED: drafts from a table of tri-grams, without a model.

  Args:
    nodes: of a tree, the most probable ones by the scores of the table.
    depth: tokens of a continuation, at most.
    branching: tokens that are kept of what came after a pair, at most V.
    buckets: for pairs of tokens; those that share one are not told apart.

  Returns:
    The method. `draft_params`, if given, are a table to begin with: tokens
    `[buckets, branching]` int32, -1 for none, and their scores, float32.

  Raises:
    ValueError: if a size is not a positive integer.
  """
  values.check_positive("branching", branching)
  values.check_positive("buckets", buckets)
  drafter = drafters.aded(nodes, depth, branching, buckets)
  return verifiers.matched(
      f"aded({nodes}, {depth}, {branching}, buckets={buckets})", drafter)
