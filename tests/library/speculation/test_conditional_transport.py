"""Conditional optimal transport, enumerated over all draws of greedy drafts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import beam
import decoding_jax as dj
from decoding_jax.speculation import expanders, tree as tree_lib, verifiers
from decoding_jax.speculation.verifiers import conditional_transport, traversal
from decoding_jax.testing import enumeration, exactness
from support import helpers

V, ROWS, LENGTH = 4, 50_000, 4
# Peaked, the drafter a little less.
PEAKED = np.tile([0.8, 0.1, 0.06, 0.04], (4, 1)), np.tile(
    [0.6, 0.2, 0.1, 0.1], (4, 1))


def one_drawn(draft, count=2):
  """Trees of greedy children of the root, and a sample."""
  return enumeration.fixed_trees(draft, ((count,),), dj.Draws.ONE_SAMPLED)


def test_control_children_that_are_all_drawn():
  target, draft = exactness.random_tables(3)
  assert enumeration.error(conditional_transport.verifier(),
                           enumeration.fixed_trees(draft, ((2,),)),
                           target) > 1e-3


def test_peaked_distributions_accept_more_than_by_traversal():
  """By the paper most is gained there."""
  target, draft = PEAKED
  _, result = enumeration.joint_distribution(
      conditional_transport.verifier(), one_drawn(draft), target)
  _, rival = enumeration.joint_distribution(
      traversal.of_tree, enumeration.fixed_trees(draft, ((2,),)), target)
  # What is most probable, and of the rest the lesser of both.
  rest = draft[0, 1:] / draft[0, 1:].sum()
  np.testing.assert_allclose(result, 1 + target[0, 0] + np.minimum(
      target[0, 1:], rest).sum(), rtol=1e-12)
  assert result > rival + 0.01


def test_post_order():
  for layout in (tree_lib.static_layout(((2,), (2, 2))),
                 tree_lib.product_layout((2, 2))):
    assert conditional_transport.post_order(layout).tolist() == [
        3, 4, 1, 5, 6, 2, 0]
  uneven = tree_lib.static_layout(((3,), (0, 2, 1)))
  assert conditional_transport.post_order(uneven).tolist() == [
      1, 4, 5, 2, 6, 3, 0]


def test_greedy_drafts():
  """Their first sibling is drawn of what the others leave; of few tokens one is
  left to be drawn, and children without a token are none."""
  expander = expanders.static_tree(((3,), (2, 1, 0)), dj.Draws.ONE_SAMPLED)
  probs = jnp.array([[0.1, 0.4, 0.3, 0.2], [0.1, 0.2, 0.3, 0.4],
                     [0.0, 0.0, 1.0, 0.0]])
  expand = jax.jit(jax.vmap(lambda key: expander.expand(
      key, 1, jnp.log(probs), jnp.ones(3, bool), ())[:3]))
  tokens, parents, valid = map(np.asarray, expand(
      jax.random.split(jax.random.key(0), 4000)))
  assert (parents == [0, 0, 1]).all() and valid.all()
  assert (tokens[:, 1] == 1).all()
  for child, expected in ((0, [0.1 / 0.6, 0, 0.5, 0.2 / 0.6]),
                          (2, [0.1, 0.2, 0.3, 0.4])):
    counts = np.bincount(tokens[:, child], minlength=4)
    assert exactness.p_value(counts, np.array(expected)) > (
        exactness.MIN_P_VALUE)
  expander = expanders.product_tree((3,), dj.Draws.ONE_SAMPLED)
  for probs, expected in (([0, 0, 1.0, 0], [2]), ([0, 0.3, 0.7, 0], [1, 2])):
    tokens, _, valid, _ = expander.expand(
        jax.random.key(0), 0, jnp.log(jnp.array([probs])), jnp.ones(1, bool),
        ())
    assert valid.tolist() == [i < len(expected) for i in range(3)]
    assert tokens[:len(expected)].tolist() == expected


@pytest.mark.parametrize("zeros", [(0, 0), (2, 1), (0, 2)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_by_node_emits_the_target_distribution(zeros, count):
  target, draft = exactness.random_tables(4, *zeros)
  trees, verifier = one_drawn(draft, count), conditional_transport.by_node()
  assert enumeration.error(verifier, trees, target) < 1e-12
  _, tokens = enumeration.joint_distribution(verifier, trees, target)
  bound = helpers.acceptance_bound(target[0], lambda chosen: sum(
      chance for tokens, valid, chance in zip(*(
          x[..., 1:] for x in (trees.tree.tokens, trees.tree.valid)),
                                              trees.probs)
      if {*tokens[valid].tolist()} <= {*chosen}))
  np.testing.assert_allclose(tokens - 1, bound, atol=1e-12)


def peeking(expander):
  """The same, but children are dropped for their tokens."""
  def expand(*args):
    tokens, parents, valid, state = expander.expand(*args)
    keep = valid & (tokens % 2 > 0)
    drop = lambda x: jnp.where(keep, x, -jnp.inf)
    return tokens, parents, keep, beam.Beam(drop(state.log_probs),
                                            drop(state.scores))

  return expander._replace(expand=expand)


@pytest.mark.cases(2)
@pytest.mark.parametrize("width, depth", [(3, 2), (4, 3)])
@pytest.mark.parametrize("peeks", [False, True])
def test_texts_of_beams_with_one_sample(width, depth, peeks):
  """Exact; not so if the shape depends on what is drawn there."""
  if peeks:
    helpers.check_wrong(verifiers.pair(peeking(expanders.beam_tree(
        width, depth, dj.Draws.ONE_IN_BEAM)), conditional_transport.by_node()),
                        V, ROWS, LENGTH)
    return
  report = dj.testing.assert_exact(
      dj.methods.rsd_s(width, depth, "rheo"), *exactness.random_tables(V),
      rows=ROWS, length=LENGTH, integrate=False)
  assert 1 < report.target_calls < LENGTH


def test_beams_with_one_sample():
  probs = jnp.log(jnp.array([[0.5, 0.1, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0]]))
  state = beam.Beam(jnp.log(jnp.array([0.7, 0.3])), jnp.zeros(2))
  tokens, parents, result = jax.vmap(lambda key: beam.with_one_sample(
      key, probs, state, 4))(jax.random.split(jax.random.key(0), 4000))
  # Scores 0.7, 0.35 = 0.7 * 0.5, 0.3, 0.28 = 0.7 * 0.4.
  assert (parents == np.array([[0, 0, 1, 0]])).all()
  assert (tokens[:, 1:] == np.array([[0, 2, 2]])).all()
  assert (tokens[:, 0] == 1).all()
  np.testing.assert_allclose(np.exp(result.log_probs[0]),
                             [0.07, 0.35, 0.3, 0.28], rtol=1e-5)
  tokens, parents, _ = jax.vmap(lambda key: beam.with_one_sample(
      key, probs, state, 3))(jax.random.split(jax.random.key(0), 4000))
  assert (parents == np.array([[0, 0, 1]])).all()
  counts = np.bincount(np.asarray(tokens[:, 0]), minlength=4)
  assert exactness.p_value(counts, np.array([0, 0.2, 0.8, 0])) > (
      exactness.MIN_P_VALUE)
