"""Layouts, ancestor masks and children; trees of any shape."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import DraftTree, FreeLayout, Layout, NONE

LAYOUTS = [Layout((), ()), Layout((1,), (1,)), Layout((1, 1, 1), (1, 1, 1)),
           Layout((2, 4), (2, 2)), Layout((3, 3), (3, 3)),
           Layout((2, 6, 6), (2, 3, 1))]


def random_parents(rng, layout):
  """Parents of all nodes, each in the level above."""
  parents, start = [NONE], 0
  for width in layout.widths:
    above = np.arange(start, len(parents))
    start = len(parents)
    parents += rng.choice(above, width).tolist()
  return np.array(parents, np.int32)


def ancestors(parents, node):
  """The node and its ancestors, by walking up."""
  path = []
  while node != NONE:
    path.append(node)
    node = parents[node]
  return path


def make_tree(parents, valid=None):
  size = len(parents)
  return DraftTree(
      tokens=jnp.zeros(size, jnp.int32), parents=jnp.asarray(parents),
      valid=jnp.ones(size, bool) if valid is None else jnp.asarray(valid),
      mask=None, log_probs=None)


@pytest.mark.parametrize("branching, widths", [
    ((), ()), ((1,), (1,)), ((3,), (3,)), ((2, 1), (2, 2)),
    ((2, 3, 1), (2, 6, 6)), ((1, 1, 4), (1, 1, 4))])
def test_product_layout(branching, widths):
  assert tree_lib.product_layout(branching) == Layout(widths, branching)


def test_beam_layouts_and_hashable_numbers():
  for width, depth, widths in ((1, 1, (1,)), (3, 1, (3,)), (2, 3, (2, 2, 2)),
                               (np.int64(2), 1, (2,))):
    assert tree_lib.beam_layout(width, depth) == Layout(widths, widths)
  layout = tree_lib.product_layout((2, 3))
  assert hash(layout) == hash(Layout((2, 6), (2, 3)))
  assert all(isinstance(x, int) for x in layout.widths + layout.branching)


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", None])
def test_sizes_must_be_positive_integers(value):
  for make in (lambda: tree_lib.product_layout((2, value)),
               lambda: tree_lib.beam_layout(value, 2),
               lambda: tree_lib.beam_layout(2, value)):
    with pytest.raises(ValueError, match=f"={value!r}: a positive integer"):
      make()


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_sizes_slices_depths_and_runs_of_a_layout(layout):
  assert tree_lib.depth(layout) == len(layout.widths)
  assert tree_lib.num_nodes(layout) == sum(layout.widths)
  assert tree_lib.max_branching(layout) == max((0, *layout.branching))
  slices = tree_lib.level_slices(layout)
  assert [s.stop - s.start for s in slices] == [1, *layout.widths]
  nodes = [i for s in slices for i in range(s.start, s.stop)]
  assert nodes == list(range(1 + sum(layout.widths)))
  parents = random_parents(np.random.default_rng(0), layout)
  walked = [len(ancestors(parents, i)) - 1 for i in range(len(parents))]
  np.testing.assert_array_equal(tree_lib.depths(layout), walked)
  assert tree_lib.depths(layout).dtype == np.int32
  runs = tree_lib.runs(layout)
  assert [level for run in runs for level in run] == list(
      range(len(layout.widths)))
  for run in runs:
    shapes = {((1, *layout.widths)[i], layout.widths[i], layout.branching[i])
              for i in run}
    assert len(shapes) == 1 and (0 not in run or len(run) == 1)


@pytest.mark.parametrize("layout, runs", [
    (Layout((1,) * 5, (1,) * 5), [range(1), range(1, 5)]),
    (Layout((3, 3, 3), (3, 3, 3)), [range(1), range(1, 3)]),
    (Layout((7, 7, 7), (7, 1, 1)), [range(1), range(1, 3)]),
    (Layout((2, 4, 4, 4), (2, 2, 1, 1)), [range(1), range(1, 2), range(2, 4)])])
def test_equal_levels_are_one_run(layout, runs):
  assert tree_lib.runs(layout) == runs


def grown(layout, parents):
  """Trees `[B, N]` that `add_level` fills in; each token is its node."""
  root = jnp.arange(parents.shape[1]) == 0
  tree = jax.vmap(make_tree, (0, None))(jnp.where(root, parents, 0), root)
  tree = tree.replace(mask=jnp.broadcast_to(
      root[None] & root[:, None], (len(parents), *root.shape * 2)))
  for level in tree_lib.level_slices(layout)[1:]:
    nodes = jnp.broadcast_to(jnp.arange(level.start, level.stop),
                             parents[:, level].shape)
    tree = tree_lib.add_level(tree, level.start, nodes, parents[:, level],
                              nodes % 2 == 0)
  return tree


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_grown_tree_equals_a_walk(layout, seed):
  rng = np.random.default_rng(seed)
  parents = np.stack([random_parents(rng, layout) for _ in range(2)])
  nodes = range(parents.shape[1])
  walked = np.zeros((2, len(nodes), len(nodes)), bool)
  for row, node in itertools.product(range(2), nodes):
    walked[row, node, ancestors(parents[row], node)] = True
  tree = grown(layout, parents)
  np.testing.assert_array_equal(tree.mask, walked)
  np.testing.assert_array_equal(tree.parents, parents)
  np.testing.assert_array_equal(tree.tokens, [nodes] * 2)
  np.testing.assert_array_equal(tree.valid, tree.tokens % 2 == 0)


def children(tree, size, node):
  """Valid children as a list, and how many slots there were."""
  indices, valid = tree_lib.children(tree, size, jnp.int32(node))
  return np.asarray(indices)[np.asarray(valid)].tolist(), len(indices)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
def test_children_keep_draw_order(layout, seed):
  rng = np.random.default_rng(seed)
  parents = random_parents(rng, layout)
  tree, size = make_tree(parents), max(layout.widths)
  for node in range(len(parents)):
    result, slots = children(tree, size, node)
    assert result == np.flatnonzero(parents == node).tolist()
    assert slots == size


def test_invalid_children_are_left_out_and_leaves_have_none():
  tree = make_tree([NONE, 0, 0, 0], [True, True, False, True])
  assert children(tree, 3, 0) == ([1, 3], 3)
  tree = make_tree([NONE, 0, 0, 2, 2])
  assert children(tree, 2, 1) == ([], 2)
  assert children(tree, 2, 2) == ([3, 4], 2)


PARENTS = [[NONE, 0, 0, 1, 3, 2, 0], [NONE, 0, 1, 2, 3, 4, 5]]
VALID = [[True, True, False, True, True, True, True],
         [True, True, True, False, True, True, True]]


def free_tree():
  tokens = jnp.arange(14).reshape(2, 7)
  return tree_lib.from_parents(tokens, jnp.array(PARENTS), jnp.array(VALID))


def test_masks_positions_and_validity_of_free_trees():
  result = free_tree()
  for row, parents in enumerate(PARENTS):
    for node in range(7):
      above, at = set(), node
      while at != NONE:
        above.add(at)
        at = parents[at]
      assert set(np.flatnonzero(result.mask[row, node])) == above
  assert tree_lib.positions(result).tolist() == [[0, 1, 1, 2, 3, 2, 1],
                                                 [0, 1, 2, 3, 4, 5, 6]]
  # What hangs from an invalid node is not valid.
  assert result.valid.tolist() == [
      [True, True, False, True, True, False, True],
      [True, True, True, False, False, False, False]]


def test_levels_and_free_trees_have_the_same_positions():
  layout = tree_lib.static_layout(((2,), (1, 2)))
  parents = jnp.array([[NONE, 0, 0, 1, 2, 2]])
  result = tree_lib.from_parents(jnp.zeros((1, 6), jnp.int32), parents,
                                 jnp.ones((1, 6), bool))
  assert tree_lib.positions(result)[0].tolist() == (
      tree_lib.depths(layout).tolist())


def test_sizes_of_a_free_layout():
  layout = tree_lib.free_layout(9, 4, 3)
  assert layout == FreeLayout(9, 4, 3)
  assert (tree_lib.num_nodes(layout), tree_lib.depth(layout),
          tree_lib.max_branching(layout)) == (9, 4, 3)
  with pytest.raises(ValueError, match="depth=0: a positive integer"):
    tree_lib.free_layout(9, 0, 3)
