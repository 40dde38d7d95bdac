"""Graph-structured speculative decoding (arXiv 2407.16207): merged drafts."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = ({"nodes": 5, "width": 2, "depth": 2, "branching": 2},)


def make(nodes: int, width: int, depth: int, branching: int = 4,
         repeat: int = 1, min_probability: float = 0.0,
         min_share: float = 0.1) -> Method:
  """Makes GSD: a draft model's tree, equal ends of which are expanded once.

  Args:
    nodes: that the target scores, the most probable ones.
    width: nodes of a level that the draft model expands.
    depth: levels, each a call of the draft model.
    branching: the most probable children of a node, at most V.
    repeat: tokens before a node that two nodes of the same token must share
      to have the same children.
    min_probability: of a token, after those before it, to have children.
    min_share: of a token's probability in its best sibling's.

  Raises:
    ValueError: if a size is not a positive integer, or a number not in 0 to 1.
  """
  values.check_positives(width=width, depth=depth, branching=branching)
  values.check_positive("repeat + 1", repeat + 1)
  values.check_number("min_probability", min_probability, 0, 1)
  values.check_number("min_share", min_share, 0, 1)
  drafter = drafters.gsd(nodes, width, depth, branching, repeat,
                         min_probability, min_share)
  sizes = f"{nodes}, {width}x{depth}x{branching}, repeat={repeat}"
  return verifiers.matched(
      f"gsd({sizes}, p={min_probability:g}, share={min_share:g})", drafter)
