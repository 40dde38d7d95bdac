"""Traversal verification, enumerated in float64 over all draws of a tree."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import expanders, tree as tree_lib, verifiers
from decoding_jax.speculation.verifiers import (
    conditional_transport, paths as paths_lib, traversal)
from decoding_jax.testing import enumeration, exactness

TOLERANCE = 1e-10
CHAIN = ((1,), (1,), (1,))


def a_batch(draft, children, tokens, valid):
  """The layout of a static tree, and trees `[n, ...]` of it."""
  layout = tree_lib.static_layout(children)
  return layout, jax.tree.map(jnp.asarray, enumeration.as_tree(
      draft, layout, tokens,
      np.tile(enumeration.parents_of(children), (len(tokens), 1)), valid))


@pytest.mark.parametrize("zeros", [(0, 0), (1, 1)], ids=str)
def test_joint_distribution_of_a_chain(zeros):
  target, draft = exactness.random_tables(3, *zeros)
  assert enumeration.error(traversal.of_chain, enumeration.fixed_trees(
      draft, CHAIN), target) < TOLERANCE


def test_control_nodes_that_keep_their_chance(monkeypatch):
  monkeypatch.setattr(traversal.paths, "left_over",
                      lambda mass, accept: accept)
  target, draft = exactness.random_tables(3, 0, 0)
  for find, children in ((traversal.of_tree, ((2,), (1, 1))),
                         (traversal.of_chain, CHAIN)):
    # A new function, so that no program compiled with this is used elsewhere.
    assert enumeration.error(functools.partial(find), enumeration.fixed_trees(
        draft, children), target) > 1e-3


def by_transport(uniforms, size, tree, probs):
  """`conditional_transport.find` of a chain in the form of other searches."""
  del size
  return conditional_transport.find(uniforms, tree_lib.static_layout(
      ((1,),) * (len(tree.tokens) - 1)), tree, probs)


@pytest.mark.parametrize("size, depth, find, other", [
    (50, 5, traversal.of_chain, traversal.of_tree),
    pytest.param(20, 4, by_transport, traversal.of_chain,
                 marks=pytest.mark.long)], ids=["traversal", "transport"])
def test_searches_of_a_chain_agree(size, depth, find, other):
  """In float32, as they run: the same node, the same distribution."""
  target, draft = exactness.random_tables(size, 5, 5)
  rng = np.random.default_rng(0)
  tokens = np.zeros((200, depth + 1), np.int32)
  for i in range(1, depth + 1):
    tokens[:, i] = [rng.choice(size, p=draft[x]) for x in tokens[:, i - 1]]
  valid = np.arange(depth + 1) < rng.integers(2, depth + 2, (200, 1))
  _, trees = a_batch(draft, ((1,),) * depth, tokens, valid)
  uniforms = rng.random(tokens.shape, np.float32)
  actual, expected = (
      jax.vmap(lambda u, tree: enumeration.run(x, 1, u, tree, jnp.asarray(
          target, jnp.float32)))(uniforms, trees) for x in (find, other))
  np.testing.assert_array_equal(actual[0], expected[0])
  np.testing.assert_allclose(actual[1], expected[1], atol=2e-6)
  assert len(set(np.asarray(actual[0]).tolist())) == depth + 1


def test_nothing_drafted():
  target, draft = exactness.random_tables(4, 0, 0)
  pair = verifiers.pair(expanders.gumbel_tree(()), traversal.verifier())
  dj.testing.assert_exact(dj.Method("none", pair, None), target, draft,
                          rows=100_000, length=2)


def test_verdict_of_every_node():
  children = ((2,), (2, 1))
  valid = np.array([[1, 1, 1, 0, 1, 1]], bool)
  layout, trees = a_batch(np.ones((3, 3)), children, np.zeros((1, 6), int),
                          valid)
  tree = jax.tree.map(lambda x: x[0], trees)
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
      probs = probs + left * stop * enumeration.continued(
          target, path[:level], rest, depth + 1)
      left *= 1 - stop
  return probs, accepted


def test_hierarchical_residuals_of_a_chain_are_block_verification():
  """Of the example of that code: 11/9 drafts; 4/3 change the distribution."""
  target = np.tile([1 / 3, 2 / 3], (2, 1))
  draft = target[:, ::-1]
  probs, accepted = hierarchical(target, draft, 2, True)
  expected = exactness.joint_distribution(target, 0, 3)
  np.testing.assert_allclose(probs, expected, rtol=0, atol=TOLERANCE)
  _, emitted = enumeration.joint_distribution(
      traversal.of_chain, enumeration.fixed_trees(draft, ((1,), (1,))), target)
  np.testing.assert_allclose([accepted, emitted - 1], 11 / 9, rtol=1e-9)
  probs, accepted = hierarchical(target, draft, 2, False)
  np.testing.assert_allclose(accepted, 4 / 3)
  np.testing.assert_allclose(np.abs(probs - expected).max(), 2 / 27)
