"""Layer verification, enumerated in float64 over all draws of a tree."""

import numpy as np
import pytest

from decoding_jax.speculation.verifiers import layers, traversal
from decoding_jax.testing import enumeration, exactness
from support import enumerated_trees


def joint_distribution(target, draft, children, change=lambda trees: trees):
  """The distribution of the first tokens of a call, and its expected tokens."""
  trees = enumeration.fixed_trees(draft, children)
  return enumeration.joint_distribution(
      layers.verifier(), trees._replace(tree=change(trees.tree)), target)


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


def test_disjoint_supports_reject_everything():
  target, draft = np.tile([0.5, 0.5, 0, 0], (4, 1)), np.tile(
      [0, 0, 0.5, 0.5], (4, 1))
  trees = enumeration.fixed_trees(draft, ((2,), (2, 2)))
  chances, rests = enumeration.ends(layers.verifier(), trees, target)
  assert chances[0].tolist() == [1, 0, 0, 0, 0, 0, 0]
  np.testing.assert_allclose(rests[0, 0], target[0])
