"""Best-first trees: the best nodes, and the trees of a beam."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, tree as tree_lib
from decoding_jax.speculation.drafters import best_first_trees
from decoding_jax.types import NONE
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny

V = 4


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
    actual = best_first_trees.best_nodes(totals, nodes)
    assert actual.tolist() == [kept]
    part = best_first_trees.subtree(tree, actual)
    assert part.parents.tolist() == [parents]
    expected = tree_lib.from_parents(tree.tokens[:, kept], part.parents,
                                     tree.valid[:, kept])
    jax.tree.map(np.testing.assert_array_equal, part, expected)


def test_of_equal_nodes_the_parent_is_kept():
  """A chain of certain tokens, and siblings without probability."""
  totals = jnp.array([[0.0, 0.0, -jnp.inf, 0.0, -jnp.inf, 0.0, -jnp.inf]])
  assert best_first_trees.best_nodes(totals, 3).tolist() == [[0, 1, 3, 5]]
  assert best_first_trees.best_nodes(totals, 4).tolist() == [[0, 1, 2, 3, 5]]


def test_a_beam_as_wide_as_the_tree_misses_nothing():
  table, _ = exactness.random_tables(V)
  tree = helpers.first_tree(drafters.best_first(4, 4, 3), table)
  assert {*helpers.paths(tree)} == helpers.best_paths(table, 4, 3)


def test_with_all_nodes_it_is_the_beam():
  table, _ = exactness.random_tables(V)
  result, beam = (helpers.first_tree(x, table) for x in (
      drafters.best_first(6, 3, 2),
      drafters.of_model(expanders.top_beam(3, 2))))
  paths = helpers.paths(result)
  assert paths == helpers.paths(beam) and len(set(paths)) == 6
  jax.tree.map(np.testing.assert_array_equal, result,
               beam.replace(log_probs=None))


def test_with_all_nodes_texts_and_counts_are_those_of_the_beam():
  """Paths of all lengths: the caches of both fall short by the same tokens."""
  models = tiny.llama_models()
  actual, expected = (
      tiny.generate(method, models, sampling=dj.Sampling(0.0))
      for method in (dj.methods.opt_tree(6, 3, 2), dj.methods.rsd_s(3, 2)))
  assert tiny.texts(actual, tiny.LENGTHS) == tiny.greedy(
      models.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  # Programs of different trees may round differently.
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), actual,
               expected)
  assert (np.asarray(actual.stats.accepted_by_depth).sum(axis=0)[1:] > 0).all()


def candidates(table, width, depth):
  """What EAGLE-2 ranks: {path: probability}, expanded level after level."""
  level, ranked = {(): 1.0}, {}
  for _ in range(depth):
    level = {(*path, int(token)): p * table[(0, *path)[-1]][token]
             for path, p in level.items()
             for token in np.argsort(-table[(0, *path)[-1]])[:width]}
    ranked |= level
    level = dict(sorted(level.items(), key=lambda x: -x[1])[:width])
  return ranked


@pytest.mark.parametrize("nodes, width, depth, vocab_size", [
    (5, 2, 3, 4), (60, 10, 6, 40)])
def test_all_children_that_the_search_has_looked_at(nodes, width, depth,
                                                    vocab_size):
  """60 nodes are all of 10 x 6 that the beam keeps, and not the best ones."""
  table, _ = exactness.random_tables(vocab_size)
  ranked = candidates(table, width, depth)
  assert len(ranked) == width + (depth - 1) * width**2
  paths = helpers.paths(helpers.first_tree(drafters.best_first(
      nodes, width, depth, rank_all=True), table))
  assert {*paths} == {*sorted(ranked, key=lambda x: -ranked[x])[:nodes]}
  beam = helpers.paths(helpers.first_tree(drafters.best_first(
      nodes, width, depth), table))
  assert sum(ranked[x] for x in paths) > sum(ranked[x] for x in beam) + 1e-3


def test_a_threshold_ends_drafting():
  """Few levels of an uncertain drafter are worth 0.9 tokens; those of the
  target, made certain of its tokens, are worth more."""
  models = tiny.llama_models()
  lm, params = models.target
  certain = tiny.Model(lm, {**params, "head": 200 * params["head"]})
  method = dj.methods.opt_tree(9, 3, 4, rank_all=True, threshold=0.9)
  levels = []
  for given in (models, tiny.Models(certain, certain)):
    out = tiny.generate(method, given, sampling=dj.Sampling(0.0))
    assert tiny.texts(out, tiny.LENGTHS) == tiny.greedy(
        given.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
    levels.append(out.stats.draft_calls / out.stats.target_calls)
  assert (levels[0] < 2).all() and (levels[1] > 3).all()


def test_rows_that_end_drafting_do_not_depend_on_others():
  """Whose levels are drafted for other rows; all have a draft model's cache."""
  models, method = tiny.llama_models(), dj.methods.opt_tree(
      9, 3, 4, rank_all=True, threshold=0.7)
  keys = jax.random.split(jax.random.key(7), 3)
  together = tiny.generate(method, models, key=keys)
  for row in range(2):
    alone = tiny.generate(method, models, key=keys[row:row + 1],
                          prompts=tiny.PROMPTS[row:row + 1],
                          lengths=tiny.LENGTHS[row:row + 1])
    np.testing.assert_array_equal(together.tokens[row], alone.tokens[0])
    assert together.stats.draft_calls[row] == alone.stats.draft_calls[0]
