"""Trees of fixed and unequal numbers of children."""

import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import expanders, tree as tree_lib, verifiers
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny
from support.helpers import check_same

UNEQUAL = ((2,), (2, 1))
LOPSIDED = ((3,), (0, 1, 2), (1, 0, 0))
ROWS, LENGTH, VOCAB = 200_000, 4, 5


def tables():
  rng = np.random.default_rng(11)
  return [exactness.random_table(rng, VOCAB) for _ in range(2)]


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


def test_joint_distribution():
  target, draft = tables()
  dj.testing.assert_exact(dj.methods.sequoia(LOPSIDED), target, draft,
                          rows=ROWS, length=LENGTH)


def test_control_siblings_in_another_order():
  drafter = expanders.static_tree(UNEQUAL)

  def expand(*args):
    tokens, *rest = drafter.expand(*args)
    return tokens.sort(), *rest

  wrong = dj.Method("sorted", verifiers.pair(drafter._replace(expand=expand),
                                             verifiers.recursive(False)), None)
  target, draft = tables()
  result = dj.testing.check(wrong, target, draft, rows=ROWS // 4, length=LENGTH)
  assert result.p_value < helpers.MAX_P_VALUE_OF_CONTROL
