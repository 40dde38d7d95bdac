"""Trees of any shape: from parents, and their positions."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import FreeLayout, NONE

PARENTS = [[NONE, 0, 0, 1, 3, 2, 0], [NONE, 0, 1, 2, 3, 4, 5]]
VALID = [[True, True, False, True, True, True, True],
         [True, True, True, False, True, True, True]]


def tree():
  tokens = jnp.arange(14).reshape(2, 7)
  return tree_lib.from_parents(tokens, jnp.array(PARENTS), jnp.array(VALID))


def test_masks_hold_all_ancestors():
  found = tree()
  for row, parents in enumerate(PARENTS):
    for node in range(7):
      above, at = set(), node
      while at != NONE:
        above.add(at)
        at = parents[at]
      assert set(np.flatnonzero(found.mask[row, node])) == above


def test_positions_are_numbers_of_ancestors():
  assert tree_lib.positions(tree()).tolist() == [[0, 1, 1, 2, 3, 2, 1],
                                                 [0, 1, 2, 3, 4, 5, 6]]


def test_what_hangs_from_an_invalid_node_is_not_valid():
  assert tree().valid.tolist() == [
      [True, True, False, True, True, False, True],
      [True, True, True, False, False, False, False]]


def test_levels_and_free_trees_have_the_same_positions():
  layout = tree_lib.static_layout(((2,), (1, 2)))
  parents = jnp.array([[NONE, 0, 0, 1, 2, 2]])
  found = tree_lib.from_parents(jnp.zeros((1, 6), jnp.int32), parents,
                                jnp.ones((1, 6), bool))
  assert tree_lib.positions(found)[0].tolist() == (
      tree_lib.depths(layout).tolist())


def test_sizes_of_a_free_layout():
  layout = tree_lib.free_layout(9, 4, 3)
  assert layout == FreeLayout(9, 4, 3)
  assert (tree_lib.num_nodes(layout), tree_lib.depth(layout),
          tree_lib.max_branching(layout)) == (9, 4, 3)
  with pytest.raises(ValueError, match="depth=0: a positive integer"):
    tree_lib.free_layout(9, 0, 3)
