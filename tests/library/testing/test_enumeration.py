"""Every rule, every way to draw for it and shared budgets, enumerated."""

import functools

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import verifiers
from decoding_jax.speculation.drafters import shared_nodes
from decoding_jax.testing import enumeration, exactness

Draws = dj.Draws
TOLERANCE = 1e-12
# The target's token is drawn by the noise, whatever the tree is; and choices of
# paths are enumerated in test_path_blocks.py.
ELSEWHERE = {"shared_gumbel", "gbv", "spectr_gbv", "global_resolution"}
CHILDREN = ((2,), (2, 1))
# Level by level: where one child of the root is nearly certain of its child,
# that child's child takes the place of the other child of the root.
PEAKED = np.array([[.334, .333, .333], [.02, .96, .02], [.334, .333, .333]])


def kept(trees, number):
  """Trees of which a budget of `number` nodes has dropped the others."""
  scores = np.array(shared_nodes.expected_acceptance(trees.layout, trees.tree))
  scores[~trees.tree.valid] = -np.inf
  best = np.sort(scores[:, 1:], axis=1)[:, ::-1][:, number - 1:number]
  order = np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1)
  assert best.shape == (len(scores), 1)
  return trees._replace(tree=trees.tree.replace(
      valid=trees.tree.valid & (order <= number)))


def verifier(rule, draws):
  return verifiers.of_name(rule, [draws])[1]


@functools.lru_cache(maxsize=None)
def drawn(draws, zeros=(0, 0)):
  """All trees that are drawn so, and the tables."""
  target, draft = exactness.random_tables(3, *zeros)
  if draws == Draws.PRUNED:
    return target, kept(enumeration.beams(draft, 2, 2), 2)
  if draws == Draws.ONE_IN_BEAM:
    return target, enumeration.beams_with_one_sample(draft, 3, 2)
  return target, enumeration.fixed_trees(draft, CHILDREN, draws)


@pytest.mark.parametrize("zeros", [(0, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("rule, draws", [
    (name, draws) for name, rule in verifiers.RULES.items()
    if name not in ELSEWHERE for draws in rule.draws], ids=str)
def test_every_rule_and_way_to_draw(rule, draws, zeros):
  target, trees = drawn(draws, zeros)
  assert enumeration.error(verifier(rule, draws), trees, target) < TOLERANCE


@pytest.mark.parametrize("rule", ["recursive", "traversal", "layer"])
def test_a_stochastic_beam(rule):
  target, draft = exactness.random_tables(3)
  trees = enumeration.beams(draft, 2, 2)
  assert enumeration.error(verifier(rule, Draws.WITHOUT_REPLACEMENT), trees,
                           target) < TOLERANCE


@pytest.mark.long
def test_control_budgets_that_are_refused():
  """Rheo and layer verification, whose samples or levels a budget changes."""
  target, draft = (np.tile(x, (3, 1)) for x in ((.2, .3, .5), (.6, .3, .1)))
  probs, _ = enumeration.joint_distribution(
      verifier("rheo", Draws.ONE_IN_BEAM),
      kept(enumeration.beams_with_one_sample(draft, 2, 1), 1), target)
  np.testing.assert_allclose(probs.sum(axis=1), [0, .75, .25])
  target = np.array([[.2, .2, .6], [.3, .5, .2], [.6, .2, .2]])
  trees = kept(enumeration.beams(PEAKED, 2, 3), 3)
  error = lambda rule, draws: enumeration.error(verifier(rule, draws), trees,
                                                target)
  assert error("layer", Draws.WITHOUT_REPLACEMENT) > 0.003
  assert error("traversal", Draws.PRUNED) < TOLERANCE
