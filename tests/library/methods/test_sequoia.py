"""Trees of fixed and unequal numbers of children."""

import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import expanders, tree as tree_lib
from support import tiny_models as tiny
from support.helpers import check_same

LOPSIDED = ((3,), (0, 1, 2), (1, 0, 0))


def test_layouts_and_their_levels():
  layout = tree_lib.static_layout(LOPSIDED)
  assert layout.widths == (3, 3, 1) and layout.branching == (3, 2, 1)
  assert tree_lib.num_nodes(layout) == 7
  # Levels of unequal children are no loop.
  children = ((2,), (1, 1), (2, 0), (0, 2), (0, 2))
  assert tree_lib.runs(tree_lib.static_layout(children)) == [
      range(1), range(1, 2), range(2, 3), range(3, 5)]


def test_equal_numbers_are_rsd_c():
  models = tiny.llama_models()
  check_same(tiny.generate(dj.methods.sequoia(((2,), (2, 2))), models),
             tiny.generate(dj.methods.rsd_c((2, 2)), models))


def test_parents_and_order_of_children():
  drafter = expanders.static_tree(LOPSIDED, dj.Draws.ARBITRARY)
  probs = np.log(np.array([.4, .3, .2, .1], np.float32))
  tokens, parents, valid, _ = drafter.expand(
      None, 1, np.stack([probs, probs, probs[::-1]]), np.ones(3, bool), ())
  assert parents.tolist() == [1, 2, 2] and tokens.tolist() == [0, 3, 2]
  assert valid.all()
