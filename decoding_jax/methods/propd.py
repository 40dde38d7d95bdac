"""ProPD (arXiv 2402.13485): trees that the target's first layers prune."""

from decoding_jax.speculation import drafters, tree, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = ({"branching": (3, 2), "nodes": 4, "layers": 1},)


def make(branching, nodes: int, layers: int) -> Method:
  """Makes ProPD: a wide tree of the most probable tokens, pruned early.

  The draft model or head grows a tree, by Medusa heads at one call. The first
  layers of the target score it, counted as one more call of the draft, and the
  nodes of the most probable paths go on to the other layers. A target without
  `LanguageModel.halves` has its trees pruned by the draft model.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1.
    nodes: that the target scores, from D to the size of the tree.
    layers: of the target that score the tree; of fewer layers all do.

  Raises:
    ValueError: for sizes that are not positive, or `nodes` out of its range.
  """
  branching = values.integers("branching", branching)
  values.check_positive("branching", *branching)
  values.check_positive("depth of branching", len(branching))
  values.check_positives(layers=layers, nodes=nodes)
  values.check_number("nodes", nodes, low=len(branching), high=tree.num_nodes(
      tree.product_layout(branching)))
  drafter = drafters.propd(branching, nodes, layers)
  shape = "-".join(map(str, branching))
  return verifiers.matched(f"propd({shape}, {nodes}, layers={layers})", drafter)
