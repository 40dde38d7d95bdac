"""OPT-Tree (arXiv 2406.17276): the most probable nodes of a beam search."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(nodes=4, width=3, depth=2),
            dict(nodes=6, width=3, depth=2, rank_all=True, threshold=0.5))


def make(nodes: int, width: int, depth: int,
         rank_temperature: float = 1.0, rank_all: bool = False,
         threshold: float = 0.0) -> Method:
  """Makes OPT-Tree: a best-first tree of a fixed number of nodes.

  The draft model grows a tree by beam search. The nodes with the most probable
  paths are scored, as in EAGLE-2 (arXiv 2406.16858).
  They are no samples: above temperature 0 a token of the target is drawn, and
  the child that it is, if any, is followed.

  Args:
    nodes: nodes that the target scores.
    width: nodes of a level of the beam search; with as many as `nodes`, no more
      probable node is missed.
    depth: its levels, each a call of the draft model.
    rank_temperature: at which the draft is ranked at temperature 0, where the
      target is surer of its token than a draft of samples is; the paper has 1.
    rank_all: ranks the `width` most probable children of each expanded node,
      `width + (depth - 1) * width**2` in all, instead of the nodes of the beam.
    threshold: OPT-Tree's delta, expected tokens a level. A level that adds less
      is a row's last one; a level that no row needs is not drafted. 0: all
      levels are.

  Returns:
    The method. With `width * depth` nodes and no `rank_all` it scores the whole
    beam search.

  Raises:
    ValueError: if a size is not a positive integer, or `nodes` is not in
      `depth` to the number of those that are ranked, or `threshold` is not
      in 0 to 1.
  """
  values.check_number("rank_temperature", rank_temperature, 0.01, 100)
  values.check_number("threshold", threshold, 0, 1)
  drafter = drafters.best_first(nodes, width, depth, rank_temperature, rank_all,
                                threshold)
  sharp = "" if rank_temperature == 1 else f", {rank_temperature:g}"
  sharp += ", rank_all=True" * rank_all
  sharp += f", threshold={threshold:g}" * bool(threshold)
  return verifiers.matched(f"opt_tree({nodes}, {width}x{depth}{sharp})",
                           drafter)
