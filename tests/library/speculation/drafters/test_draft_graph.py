"""GSD: merged and pruned as by hand."""

import numpy as np

from decoding_jax.speculation import drafters
from support import helpers

V = 4


def paths(table, *sizes):
  """The paths of the first tree after token 0."""
  return helpers.paths(helpers.first_tree(drafters.gsd(*sizes), table))


# After 0 come 1 and 2, and after either 3.
TABLE = np.array([[.02, .5, .45, .03], [.05, .05, .1, .8], [.1, .05, .05, .8],
                  [.1, .65, .2, .05]])


def test_merged_nodes_are_expanded_once():
  """Two expansions a level find what takes the plain search more: its second
  one of level 2 is spent on another 3. Control: without merging it is missed.
  """
  sizes = 12, 2, 3, V
  merged = paths(TABLE, *sizes, 0, 0.0, 0.0)
  assert set(merged) == helpers.best_paths(TABLE, 12, 3)
  assert {(1, 3, 1), (2, 3, 1)} <= set(merged)
  single = paths(TABLE, 12, 1, 3, V, 9, 0.0, 0.0)
  assert not {(1, 3, 1), (2, 3, 1)} <= set(single)


def test_pruned_children():
  """Not of a tenth of the best sibling, and below .7 without children."""
  assert set(paths(TABLE, 30, 4, 1, V, 0, 0.0, 0.3)) == {(1,), (2,)}
  result = paths(TABLE, 30, 4, 3, V, 0, 0.46, 0.3)
  assert set(result) == {(1,), (2,), (1, 3), (1, 3, 1), (1, 3, 2)}
