"""What drafters say of their levels, and of the forwards of a draft model."""

import decoding_jax as dj
from decoding_jax.speculation import tree


def widths(drafter: dj.Drafter) -> tuple[int, ...]:
  """Returns the nodes of each level that a model grows, a forward each."""
  # Where a forward is not a level, as in a tree of a free layout, the forwards
  # share the nodes evenly. Empty if no model drafts.
  layout = drafter.layout
  if isinstance(layout, dj.Layout) and drafter.calls == tree.depth(layout):
    return layout.widths
  nodes = tree.num_nodes(layout)
  return (-(-nodes // max(drafter.calls, 1)),) * drafter.calls


def tokens(drafter: dj.Drafter) -> tuple[int, ...]:
  """Returns tokens of a row in each forward; the root's has two."""
  return (2, *widths(drafter)[:-1]) if widths(drafter) else ()


def most(draft) -> int:
  """Returns how many levels a draft model or head drafts; 0: any number."""
  return draft.depth if isinstance(draft, dj.Head) else 0


def num_distributions(drafter: dj.Drafter) -> int:
  """Returns of how many nodes a step keeps draft distributions, at most."""
  layout = drafter.layout
  if not drafter.calls and drafter.draws == dj.Draws.ARBITRARY:
    return 0
  if isinstance(layout, dj.Layout):
    # The root has one of each of several models, which share the first level.
    roots = (*layout.widths, 0)[0] if (
        drafter.draws == dj.Draws.OF_SEVERAL) else 1
    return roots + sum(layout.widths[:-1]) if layout.widths else 0
  # The last node of a free tree has no children.
  return tree.num_nodes(layout)
