"""Suffix decoding (arXiv 2411.04975): continuations by how often they occur."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = ({"nodes": 4, "depth": 2, "num_paths": 4},)


def make(nodes: int, depth: int, num_paths: int = 16, max_ngram: int = 8,
         min_probability: float = 0.1, nodes_per_match: float = 4.0) -> Method:
  """Makes suffix decoding: drafts what follows most often, without a model.

  Args:
    nodes: most nodes of a tree.
    depth: tokens of a continuation.
    num_paths: latest occurrences that are counted.
    max_ngram: tokens that are compared, at most.
    min_probability: of a node, 0 to 1.
    nodes_per_match: most nodes for each token that agrees.

  Returns:
    The method. `draft_params`, if given, are `[C]` int32: other texts that are
    searched as well, -1 between two of them.

  Raises:
    ValueError: for a size that is not a positive integer, or a probability that
      is none.
  """
  values.check_positives(nodes=nodes, depth=depth)
  values.check_number("min_probability", min_probability, 0, 1)
  values.check_number("nodes_per_match", nodes_per_match)
  drafter = drafters.suffix(nodes, depth, num_paths, max_ngram,
                            min_probability, nodes_per_match)
  name = (f"suffix({nodes}x{depth}, num_paths={num_paths}, max_ngram="
          f"{max_ngram}, min_probability={min_probability:g}, nodes_per_match="
          f"{nodes_per_match:g})")
  return verifiers.matched(name, drafter)
