"""Best-first trees: the best nodes, exact texts, and a draft cache in step."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.speculation.drafters import best_first_trees
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.testing import drafter_conformance, exactness
from decoding_jax.types import NONE
from support import helpers
from support import tiny_models as tiny

V, ROWS, LENGTH = 4, 50_000, 4
SIZES = dict(nodes=4, width=3, depth=2)
METHOD = dj.methods.opt_tree(**SIZES)


def grown_tree():
  """A beam search of width 2 and depth 2, of a root of token 0, by hand."""
  log_probs = np.log(np.array([
      [0.05, 0.6, 0.35], [0.8, 0.1, 0.1], [0.2, 0.3, 0.5]]))
  tree = tree_lib.from_parents(
      jnp.array([[0, 1, 2, 0, 2]]), jnp.array([[NONE, 0, 0, 1, 2]]),
      jnp.ones((1, 5), bool))
  return tree.replace(log_probs=jnp.asarray(log_probs[None], jnp.float32))


@pytest.mark.long
def test_nodes_of_the_most_probable_paths():
  tree = grown_tree()
  totals = best_first_trees.path_log_probs(tree_lib.beam_layout(2, 2), tree)
  np.testing.assert_allclose(np.exp(totals[0]), [1, 0.6, 0.35, 0.48, 0.175],
                             rtol=1e-6)
  # Node 3, of level 2, is more probable than node 2, of level 1.
  for nodes, kept, parents in ((1, [0, 1], [NONE, 0]),
                               (2, [0, 1, 3], [NONE, 0, 1]),
                               (3, [0, 1, 2, 3], [NONE, 0, 0, 1]),
                               (4, [0, 1, 2, 3, 4], [NONE, 0, 0, 1, 2])):
    found = best_first_trees.best_nodes(totals, nodes)
    assert found.tolist() == [kept]
    part = best_first_trees.subtree(tree, found)
    assert part.parents.tolist() == [parents]
    expected = tree_lib.from_parents(tree.tokens[:, kept], part.parents,
                                     tree.valid[:, kept])
    jax.tree.map(np.testing.assert_array_equal, part, expected)


def test_of_equal_nodes_the_parent_is_kept():
  """A chain of certain tokens, and siblings without probability."""
  totals = jnp.array([[0.0, 0.0, -jnp.inf, 0.0, -jnp.inf, 0.0, -jnp.inf]])
  assert best_first_trees.best_nodes(totals, 3).tolist() == [[0, 1, 3, 5]]
  assert best_first_trees.best_nodes(totals, 4).tolist() == [[0, 1, 2, 3, 5]]


def trees(drafter, table):
  """The first tree of a text after token 0, and all nodes' probabilities."""
  found = []

  def propose(keys, context, state):
    tree, pending = drafter.propose(keys, context, state)
    jax.debug.callback(lambda tree: found.append(tree), tree)
    return tree, pending

  pair = verifiers.pair(drafter._replace(propose=propose), verifiers.match())
  exactness.frequencies(dj.Method("spied", pair, pair), table, table, 1, 1)
  jax.effects_barrier()
  tree = jax.tree.map(np.asarray, found[0])
  paths = []
  for node in range(1, tree.tokens.shape[1]):
    above = np.flatnonzero(tree.mask[0, node])
    paths.append(tuple(tree.tokens[0, above[1:]].tolist()))
  return tree, paths


def test_a_beam_as_wide_as_the_tree_misses_nothing():
  table, _ = exactness.random_tables(V)
  _, paths = trees(drafters.best_first(4, 4, 3), table)
  chances = {}
  for depth in (1, 2, 3):
    for tokens in itertools.product(range(V), repeat=depth):
      chances[tokens] = np.prod([table[a, b] for a, b in itertools.pairwise(
          (0, *tokens))])
  best = sorted(chances, key=chances.get, reverse=True)[:4]
  assert set(paths) == set(best)


def test_with_all_nodes_it_is_the_beam():
  table, _ = exactness.random_tables(V)
  found, paths = trees(drafters.best_first(6, 3, 2), table)
  beam, expected = trees(drafters.of_model(expanders.top_beam(3, 2)), table)
  assert paths == expected and len(set(paths)) == 6
  jax.tree.map(np.testing.assert_array_equal, found,
               beam.replace(log_probs=None))


@pytest.mark.cases(1)
@pytest.mark.parametrize("zeros", [(0, 0), (1, 2)], ids=str)
def test_joint_distribution(zeros):
  target, draft = exactness.random_tables(V, *zeros)
  counts, stats = exactness.frequencies(METHOD, target, draft, ROWS, LENGTH)
  probs = exactness.joint_distribution(target, 0, LENGTH)
  assert exactness.p_value(counts, probs) > exactness.MIN_P_VALUE
  # Two calls and more, and some of their drafts are accepted.
  assert 1 < np.mean(stats.target_calls) < LENGTH


def test_control_children_taken_for_samples():
  def propose(keys, context, state):
    tree, pending = METHOD.sampled.drafter.propose(keys, context, state)
    return tree.replace(log_probs=jnp.full(
        (*tree.tokens.shape, V), -np.log(V))), pending

  pair = dj.Pair(METHOD.sampled.drafter._replace(propose=propose),
                 verifiers.recursive(replacement=False))
  target, draft = exactness.random_tables(V)
  counts, _ = exactness.frequencies(dj.Method("wrong", pair, pair), target,
                                    draft, ROWS, LENGTH)
  probs = exactness.joint_distribution(target, 0, LENGTH)
  assert exactness.p_value(counts, probs) < helpers.MAX_P_VALUE_OF_CONTROL


def test_contract_of_drafters():
  drafter_conformance.check_drafter(drafters.best_first(**SIZES), rows=200,
                                    steps=2)


def test_wrong_pairs_are_refused():
  with pytest.raises(ValueError, match="Drafter.draws=ARBITRARY"):
    dj.pair(drafters.best_first(**SIZES), verifiers.recursive(False))


def test_a_draft_cache_in_step_accepts_whole_paths():
  """The target, made certain of its tokens, drafts for itself.

  The best path is in each tree then; with a wrong cache some would be missed.
  """
  lm, params = tiny.llama_models().target
  certain = tiny.Model(lm, {**params, "head": 50 * params["head"]})
  out = tiny.generate(METHOD, tiny.Models(certain, certain),
                      sampling=dj.Sampling(0.0))
  assert tiny.texts(out, tiny.LENGTHS) == tiny.greedy(
      certain, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  np.testing.assert_array_equal(out.stats.target_calls,
                                tiny.NEW / (1 + SIZES["depth"]))


def test_with_all_nodes_texts_and_counts_are_those_of_the_beam():
  """Paths of all lengths: the caches of both fall short by the same tokens."""
  models = tiny.llama_models()
  found, expected = (
      tiny.generate(method, models, sampling=dj.Sampling(0.0))
      for method in (dj.methods.opt_tree(6, 3, 2), dj.methods.rsd_s(3, 2)))
  assert tiny.texts(found, tiny.LENGTHS) == tiny.greedy(
      models.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  # Programs of different trees may round differently.
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), found,
               expected)
  assert (np.asarray(found.stats.accepted_by_depth).sum(axis=0)[1:] > 0).all()


@pytest.mark.parametrize("sizes, words", [
    ((0, 2, 2), "nodes=0: a positive integer"),
    ((5, 2, 2), r"nodes=5: depth=2 to width \* depth=4"),
    ((1, 2, 2), r"nodes=1: depth=2 to width \* depth=4"),
    ((2, 2, "2"), "depth='2': a positive integer")])
def test_wrong_sizes(sizes, words):
  with pytest.raises(ValueError, match=words):
    dj.methods.opt_tree(*sizes)
