"""Conditional optimal transport, enumerated over all draws of greedy drafts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import beam
import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.verifiers import conditional_transport, traversal
from decoding_jax.testing import drafter_conformance, exactness
from support import acceptance_bounds, enumerated_trees, helpers

V, ROWS, LENGTH = 4, 50_000, 4
# Vocabulary, zeros of the distributions, children of each node level after
# level.
TREES = [
    (3, (0, 0), ((2,), (2, 2))),
    (3, (1, 1), ((2,), (2, 1))),
    (4, (1, 0), ((3,),)),
    # With two tokens of mass, not more than one is fixed.
    (4, (0, 2), ((3,), (1, 0, 1))),
    (3, (0, 2), ((2,), (0, 1))),
]
# Peaked, the drafter a little less.
PEAKED = np.tile([0.8, 0.1, 0.06, 0.04], (4, 1)), np.tile(
    [0.6, 0.2, 0.1, 0.1], (4, 1))


@functools.lru_cache(maxsize=None)
def finder(children):
  """`conditional_transport.find` in the form of the others."""
  layout = tree_lib.static_layout(children)
  return lambda uniforms, size, tree, probs: conditional_transport.find(
      uniforms, layout, tree, probs)


def joint_distribution(target, draft, children,
                       draws=enumerated_trees.greedy_and_sample):
  return enumerated_trees.joint_distribution(finder(children), target, draft,
                                             children, draws)


@pytest.mark.cases(1)
@pytest.mark.parametrize("size, zeros, children", TREES, ids=str)
def test_joint_distribution_of_a_call(size, zeros, children):
  target, draft = exactness.random_tables(size, *zeros)
  probs, _ = joint_distribution(target, draft, children)
  expected = exactness.joint_distribution(target, 0, probs.ndim)
  np.testing.assert_allclose(probs, expected, atol=1e-12, rtol=0)


def test_control_children_that_are_all_drawn():
  target, draft = exactness.random_tables(3)
  probs, _ = joint_distribution(target, draft, ((2,),),
                                enumerated_trees.without_replacement)
  assert np.abs(probs.sum(axis=1) - target[0]).max() > 1e-3


def test_equal_distributions_accept_a_leaf():
  target, _ = exactness.random_tables(3)
  probs, emitted = joint_distribution(target, target, ((2,), (2, 1)))
  np.testing.assert_allclose(emitted, 3, rtol=1e-12)
  assert not enumerated_trees.wrong(probs, target)


def test_peaked_distributions_accept_more_than_by_traversal():
  """By the paper most is gained there."""
  target, draft = PEAKED
  _, found = joint_distribution(target, draft, ((2,),))
  _, rival = enumerated_trees.joint_distribution(
      traversal.of_tree, target, draft, ((2,),))
  # What is most probable, and of the rest the lesser of both.
  rest = draft[0, 1:] / draft[0, 1:].sum()
  np.testing.assert_allclose(found, 1 + target[0, 0] + np.minimum(
      target[0, 1:], rest).sum(), rtol=1e-12)
  assert found > rival + 0.01


@pytest.mark.long
def test_a_chain_is_block_verification():
  """In float32, as it runs: the same node, the same distribution."""
  target, draft = exactness.random_tables(20, 5, 5)
  children = ((1,),) * 4
  layout, parents = enumerated_trees.shape(children)
  rng = np.random.default_rng(0)
  tokens = np.zeros((200, len(parents)), np.int32)
  for i in range(1, len(parents)):
    tokens[:, i] = [rng.choice(20, p=draft[x]) for x in tokens[:, i - 1]]
  valid = np.arange(len(parents)) < rng.integers(1, 6, (200, 1))
  trees = jax.tree.map(jnp.asarray, enumerated_trees.static_trees(
      draft, layout, parents, tokens, valid))
  uniforms = rng.random(tokens.shape, np.float32)
  found, expected = (
      jax.vmap(lambda u, tree: enumerated_trees.run(
          find, 1, u, tree, jnp.asarray(target, jnp.float32)))(uniforms, trees)
      for find in (finder(children), traversal.of_chain))
  np.testing.assert_array_equal(found[0], expected[0])
  np.testing.assert_allclose(found[1], expected[1], atol=2e-6)
  assert len(set(np.asarray(found[0]).tolist())) == len(parents)


def test_post_order():
  for layout in (tree_lib.static_layout(((2,), (2, 2))),
                 tree_lib.product_layout((2, 2))):
    assert conditional_transport.post_order(layout).tolist() == [
        3, 4, 1, 5, 6, 2, 0]
  uneven = tree_lib.static_layout(((3,), (0, 2, 1)))
  assert conditional_transport.post_order(uneven).tolist() == [
      1, 4, 5, 2, 6, 3, 0]


def test_joint_distribution_of_texts():
  """Of a tree whose nodes have unequal numbers of children."""
  target, draft = exactness.random_tables(V)
  method = dj.methods.sequoia(((3,), (2, 0, 1)), "conditional_ot")
  found = dj.testing.assert_exact(method, target, draft, rows=ROWS,
                                  length=LENGTH)
  assert 1 < found.target_calls < LENGTH


def test_control_texts_of_children_that_are_all_drawn():
  target, draft = exactness.random_tables(V)
  drafts = dj.methods.rsd_c((2, 2)).sampled.drafter
  pair = dj.Pair(drafts, conditional_transport.verifier())
  found = exactness.fit(dj.Method("wrong", pair, pair), target, draft,
                        rows=ROWS, length=LENGTH)
  assert found.p_value < helpers.MAX_P_VALUE_OF_CONTROL


def test_greedy_drafts():
  """Their first sibling is drawn of what the others leave."""
  expander = expanders.static_tree(((3,), (2, 1, 0)),
                                   dj.Draws.ONE_SAMPLED)
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


def test_greedy_drafts_of_few_tokens():
  """One of them is left to be drawn; children without a token are none."""
  expander = expanders.product_tree((3,), dj.Draws.ONE_SAMPLED)
  for probs, expected in (([0, 0, 1.0, 0], [2]), ([0, 0.3, 0.7, 0], [1, 2])):
    tokens, _, valid, _ = expander.expand(
        jax.random.key(0), 0, jnp.log(jnp.array([probs])), jnp.ones(1, bool),
        ())
    assert valid.tolist() == [i < len(expected) for i in range(3)]
    assert tokens[:len(expected)].tolist() == expected


@pytest.mark.long
def test_greedy_drafts_keep_the_contract_of_drafters():
  drafter_conformance.check_drafter(drafters.of_model(
      expanders.product_tree((2, 2), dj.Draws.ONE_SAMPLED)), rows=200, steps=2)


@pytest.mark.parametrize("zeros", [(0, 0), (2, 1), (0, 2)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_by_node_emits_the_target_distribution(zeros, count):
  target, draft = (x[0] for x in exactness.random_tables(4, *zeros))
  rule = conditional_transport.by_node().rule
  probs, some = 0, 0
  for tokens, valid, chance in enumerated_trees.greedy_and_sample(draft, count):
    chances, rests = helpers.acceptance(rule, target, draft, np.array([tokens]),
                                        np.array([valid]))
    reach = chance
    for token, hit in zip(tokens, chances[0]):
      probs = probs + reach * hit * np.eye(4)[token]
      some += reach * hit
      reach *= 1 - hit
    probs = probs + reach * rests[0]
  np.testing.assert_allclose(probs, target, atol=1e-12)
  bound = acceptance_bounds.greedy_and_sample(
      target[None], draft[None], min(count, np.count_nonzero(draft)))
  np.testing.assert_allclose(some, bound[0, -1], atol=1e-12)


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
  target, draft = exactness.random_tables(V)
  method = dj.methods.rsd_s(width, depth, "rheo")
  if peeks:
    pair = verifiers.pair(peeking(expanders.beam_tree(
        width, depth, dj.Draws.ONE_IN_BEAM)), conditional_transport.by_node())
    method = dj.Method("wrong", pair, pair)
  counts, stats = exactness.frequencies(method, target, draft, ROWS, LENGTH)
  p_value = exactness.p_value(counts, exactness.joint_distribution(
      target, 0, LENGTH))
  if peeks:
    assert p_value < helpers.MAX_P_VALUE_OF_CONTROL
  else:
    assert p_value > exactness.MIN_P_VALUE
    assert 1 < np.mean(stats.target_calls) < LENGTH


def test_beams_with_one_sample():
  """How many children nodes have is known before they are drawn."""
  probs = jnp.log(jnp.array([[0.5, 0.1, 0.4, 0.0], [0.0, 0.0, 1.0, 0.0]]))
  state = beam.Beam(jnp.log(jnp.array([0.7, 0.3])), jnp.zeros(2))
  tokens, parents, found = jax.vmap(lambda key: beam.with_one_sample(
      key, probs, state, 4))(jax.random.split(jax.random.key(0), 4000))
  # Scores 0.7, 0.35 = 0.7 * 0.5, 0.3, 0.28 = 0.7 * 0.4.
  assert (parents == np.array([[0, 0, 1, 0]])).all()
  assert (tokens[:, 1:] == np.array([[0, 2, 2]])).all()
  assert (tokens[:, 0] == 1).all()
  np.testing.assert_allclose(np.exp(found.log_probs[0]),
                             [0.07, 0.35, 0.3, 0.28], rtol=1e-5)
  tokens, parents, _ = jax.vmap(lambda key: beam.with_one_sample(
      key, probs, state, 3))(jax.random.split(jax.random.key(0), 4000))
  assert (parents == np.array([[0, 0, 1]])).all()
  counts = np.bincount(np.asarray(tokens[:, 0]), minlength=4)
  assert exactness.p_value(counts, np.array([0, 0.2, 0.8, 0])) > (
      exactness.MIN_P_VALUE)


def test_wrong_pairs_are_refused():
  with pytest.raises(ValueError, match="draws=ONE_IN_BEAM"):
    verifiers.pair(expanders.beam_tree(2, 2, dj.Draws.ONE_IN_BEAM),
                   conditional_transport.verifier())
  # A sample of what a dropped sibling leaves.
  with pytest.raises(ValueError, match="draws=dj.Draws.ONE_IN_BEAM: one of"):
    drafters.shared(1, 2, 1, 1, dj.Draws.ONE_IN_BEAM)
  with pytest.raises(ValueError, match="takes=ONE_SAMPLED, ONE_IN_BEAM"):
    verifiers.pair(expanders.stochastic_beam(2, 2),
                   conditional_transport.by_node())
  for drafter in (expanders.gumbel_top_k((2, 2)), expanders.top_k((2, 2)),
                  expanders.stochastic_beam(2, 2)):
    with pytest.raises(ValueError, match="Verifier.takes=ONE_SAMPLED"):
      verifiers.pair(drafter, conditional_transport.verifier())
  drafter = expanders.product_tree((2, 2), dj.Draws.ONE_SAMPLED)
  for verifier in (verifiers.recursive(False), traversal.verifier()):
    with pytest.raises(ValueError, match="Drafter.draws=ONE_SAMPLED"):
      verifiers.pair(drafter, verifier)
  assert verifiers.pair(drafter, verifiers.sample_and_match())
