"""Layer verification, enumerated in float64 over all draws of a tree."""

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import expanders, verifiers
from decoding_jax.speculation.verifiers import layers, traversal
from decoding_jax.testing import enumeration, exactness
from support import enumerated_trees, helpers
from support.example_methods import each

V, ROWS, LENGTH = 4, 50_000, 4
# Vocabulary, zeros of the distributions, children of each node level after
# level.
TREES = [
    (3, (0, 0), ((2,), (2, 2))),
    (3, (1, 1), ((2,), (2, 1))),
    (4, (1, 2), ((3,),)),
    (2, (0, 0), ((2,), (2, 0), (1, 2))),
]


def joint_distribution(target, draft, children, change=lambda trees: trees):
  """The distribution of the first tokens of a call, and its expected tokens."""
  trees = enumeration.fixed_trees(draft, children)
  return enumeration.joint_distribution(
      layers.verifier(), trees._replace(tree=change(trees.tree)), target)


@pytest.mark.cases(1)
@pytest.mark.parametrize("size, zeros, children", TREES, ids=str)
def test_joint_distribution_of_a_call(size, zeros, children):
  target, draft = exactness.random_tables(size, *zeros)
  probs, _ = joint_distribution(target, draft, children)
  expected = exactness.joint_distribution(target, 0, probs.ndim)
  np.testing.assert_allclose(probs, expected, atol=1e-12, rtol=0)


def test_control_children_in_another_order():
  """Siblings drawn in one order, and tested in that of their ids."""
  def change(trees):
    return trees.replace(tokens=np.concatenate(
        [trees.tokens[:, :1], np.sort(trees.tokens[:, 1:], axis=1)], axis=1))

  target, draft = exactness.random_tables(4)
  probs, _ = joint_distribution(target, draft, ((2,),), change)
  assert np.abs(probs.sum(axis=1) - target[0]).max() > 1e-3


@pytest.mark.long
def test_expected_tokens():
  """On a chain as block verification does; on a tree, less than traversal."""
  target, draft = (np.tile(probs, (3, 1)) for probs in (
      [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]))
  for children in (((1,), (1,)), ((2,), (2, 2))):
    _, result = joint_distribution(target, draft, children)
    _, rival = enumerated_trees.joint_distribution(
        traversal.of_tree, target, draft, children)
    if children[0] == (1,):
      np.testing.assert_allclose(result, rival, rtol=1e-9)
    else:
      assert result < rival


def test_equal_distributions_accept_a_leaf():
  target, _ = exactness.random_tables(V)
  method = dj.methods.rsd_c((2, 2), "layer")
  _, stats = exactness.frequencies(method, target, target, 1000, 3)
  np.testing.assert_array_equal(stats.target_calls, 1)


@pytest.mark.cases(1)
@each([dj.methods.rsd_c((2, 2), "layer"), dj.methods.rsd_s(2, 3, "layer"),
       dj.methods.sequoia(((3,), (2, 0, 1)), "layer")])
def test_joint_distribution_of_texts(method):
  """The shape of a beam depends on what is drawn, and is not enumerated."""
  target, draft = exactness.random_tables(V)
  result = dj.testing.assert_exact(method, target, draft, rows=ROWS,
                                   length=LENGTH)
  assert 1 < result.target_calls < LENGTH


def test_control_texts_of_greedy_drafts():
  target, draft = exactness.random_tables(V)
  pair = dj.Pair(dj.methods.rsd_c((2, 2), "conditional_ot").sampled.drafter,
                 layers.verifier())
  result = dj.testing.check(dj.Method("wrong", pair, pair), target, draft,
                            rows=ROWS, length=LENGTH)
  assert result.p_value < helpers.MAX_P_VALUE_OF_CONTROL


def test_wrong_pairs_are_refused():
  for drafter, words in (
      (expanders.product_tree((2, 2), dj.Draws.ONE_SAMPLED),
       "Drafter.draws=ONE_SAMPLED"),
      (expanders.iid_paths(2, 2), "Drafter.draws=WITH_REPLACEMENT")):
    with pytest.raises(ValueError, match=words):
      verifiers.pair(drafter, layers.verifier())


def test_disjoint_supports_reject_everything():
  target, draft = np.tile([0.5, 0.5, 0, 0], (4, 1)), np.tile(
      [0, 0, 0.5, 0.5], (4, 1))
  trees = enumeration.fixed_trees(draft, ((2,), (2, 2)))
  chances, rests = enumeration.ends(layers.verifier(), trees, target)
  assert chances[0].tolist() == [1, 0, 0, 0, 0, 0, 0]
  np.testing.assert_allclose(rests[0, 0], target[0])
