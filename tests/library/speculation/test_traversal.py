"""Traversal verification, enumerated in float64 over all draws of a tree."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import expanders, verifiers
from decoding_jax.speculation.verifiers import paths as paths_lib
from decoding_jax.speculation.verifiers import traversal
from decoding_jax.testing import exactness
from support.enumerated_trees import (
    by_transport, continued, joint_distribution, run, shape, static_trees,
    wrong)

ROWS, LENGTH = 100_000, 4
# Standard errors that a measured mean may lie off; a chance of 1 in 10^6.
SIGMAS = 5
CHAIN = ((1,), (1,), (1,))


@pytest.mark.parametrize("zeros", [(0, 0), (1, 1)], ids=str)
def test_joint_distribution_of_a_chain(zeros):
  target, draft = exactness.random_tables(3, *zeros)
  probs, _ = joint_distribution(traversal.of_chain, target, draft, CHAIN)
  assert not wrong(probs, target)


def test_control_nodes_that_keep_their_chance(monkeypatch):
  monkeypatch.setattr(traversal.paths, "left_over",
                      lambda mass, accept: accept)
  target, draft = exactness.random_tables(3, 0, 0)
  for find, children in ((traversal.of_tree, ((2,), (1, 1))),
                         (traversal.of_chain, CHAIN)):
    # A new function, so that no program compiled with this is used elsewhere.
    probs, _ = joint_distribution(functools.partial(find), target, draft,
                                  children)
    assert np.abs(
        probs -
        exactness.joint_distribution(target, 0, probs.ndim)).max() > 1e-3


@pytest.mark.parametrize("size, depth, find, other", [
    (50, 5, traversal.of_chain, traversal.of_tree),
    pytest.param(20, 4, by_transport(((1,),) * 4), traversal.of_chain,
                 marks=pytest.mark.long)], ids=["traversal", "transport"])
def test_searches_of_a_chain_agree(size, depth, find, other):
  """In float32, as they run: the same node, the same distribution."""
  target, draft = exactness.random_tables(size, 5, 5)
  layout, parents = shape(((1,),) * depth)
  rng = np.random.default_rng(0)
  tokens = np.zeros((200, depth + 1), np.int32)
  for i in range(1, depth + 1):
    tokens[:, i] = [rng.choice(size, p=draft[x]) for x in tokens[:, i - 1]]
  valid = np.arange(depth + 1) < rng.integers(2, depth + 2, (200, 1))
  trees = jax.tree.map(jnp.asarray, static_trees(draft, layout, parents, tokens,
                                                 valid))
  uniforms = rng.random(tokens.shape, np.float32)
  actual, expected = (
      jax.vmap(lambda u, tree: run(x, 1, u, tree, jnp.asarray(
          target, jnp.float32)))(uniforms, trees) for x in (find, other))
  np.testing.assert_array_equal(actual[0], expected[0])
  np.testing.assert_allclose(actual[1], expected[1], atol=2e-6)
  assert len(set(np.asarray(actual[0]).tolist())) == depth + 1


@pytest.mark.cases(1)
@pytest.mark.parametrize("children", [CHAIN, ((2,), (2, 2))], ids=str)
def test_expected_tokens(children):
  target, draft = (np.tile(probs, (3, 1)) for probs in (
      [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]))
  find = traversal.of_chain if children is CHAIN else traversal.of_tree
  _, expected = joint_distribution(find, target, draft, children)
  usual, better = (
      dj.methods.sequoia(children, form) for form in ("recursive", "traversal"))
  tokens = {}
  for method in (usual, better):
    _, stats = exactness.frequencies(method, target, draft, 20_000, 1)
    depths = np.asarray(stats.accepted_by_depth)
    accepted = 1 + depths @ np.arange(depths.shape[1])
    tokens[method] = accepted.mean()
  error = accepted.std() / np.sqrt(len(accepted))
  assert abs(tokens[better] - expected) <= SIGMAS * error
  assert tokens[better] > tokens[usual] + SIGMAS * error


def test_nothing_drafted():
  target, draft = exactness.random_tables(4, 0, 0)
  pair = verifiers.pair(expanders.gumbel_tree(()), traversal.verifier())
  dj.testing.assert_exact(dj.Method("none", pair, None), target, draft,
                          rows=ROWS, length=2)


def test_verdict_of_every_node():
  children = ((2,), (2, 1))
  layout, parents = shape(children)
  valid = np.array([1, 1, 1, 0, 1, 1], bool)
  tree = jax.tree.map(lambda x: jnp.asarray(x[0]), static_trees(
      np.ones((3, 3)), layout, parents, np.zeros((1, 6), int), valid[None]))
  result = {node: paths_lib.verdict(layout, tree, jnp.int32(node), jnp.int32(7))
            for node in (0, 2, 4, 5)}
  paths = {0: [0, 0, 0], 2: [0, 2, 2], 4: [0, 1, 4], 5: [0, 2, 5]}
  ranks = {0: [-1, -1], 2: [1, -1], 4: [0, 1], 5: [1, 0]}
  # Of the first child one of two is there.
  counts = {0: [2, 0], 2: [2, 1], 4: [2, 1], 5: [2, 1]}
  for node, verdict in result.items():
    assert verdict.path.tolist() == paths[node]
    assert verdict.ranks.tolist() == ranks[node]
    assert verdict.num_children.tolist() == counts[node]
    assert verdict.num_accepted == sum(rank >= 0 for rank in ranks[node])
    assert verdict.token == 7


def hierarchical(target, draft, depth, cut_last):
  """HSD's text and tokens (arXiv 2601.05724); its last ratio is not cut."""
  probs, accepted = 0, 0.0
  for path in itertools.product(range(len(target)), repeat=depth):
    before = (0, *path[:-1])
    left = np.prod(draft[before, path])
    ratios = np.cumprod([1, *(target[before, path] / draft[before, path])])
    accepts = ratios / np.maximum(np.maximum.accumulate(ratios), 1)
    for level in reversed(range(depth + 1)):
      rest = target[path[level - 1] if level else 0]
      if level == depth:
        stop = accepts[-1] if cut_last else min(1, ratios[-1])
      else:
        drafted = draft[path[level - 1] if level else 0]
        more, less = (np.maximum(sign * (accepts[level] * rest - drafted), 0)
                      for sign in (1, -1))
        stop = more.sum() / less.sum() if level else 1
        rest = more / max(more.sum(), 1e-300)
      accepted += left * stop * level
      probs = probs + left * stop * continued(target, path[:level], rest,
                                              depth + 1)
      left *= 1 - stop
  return probs, accepted


def test_hierarchical_residuals_of_a_chain_are_block_verification():
  """Of the example of that code: 11/9 drafts; 4/3 change the distribution."""
  target = np.tile([1 / 3, 2 / 3], (2, 1))
  draft = target[:, ::-1]
  probs, accepted = hierarchical(target, draft, 2, True)
  assert not wrong(probs, target)
  _, emitted = joint_distribution(traversal.of_chain, target, draft,
                                  ((1,), (1,)))
  np.testing.assert_allclose([accepted, emitted - 1], 11 / 9, rtol=1e-9)
  probs, accepted = hierarchical(target, draft, 2, False)
  np.testing.assert_allclose(accepted, 4 / 3)
  expected = exactness.joint_distribution(target, 0, 3)
  np.testing.assert_allclose(np.abs(probs - expected).max(), 2 / 27)
