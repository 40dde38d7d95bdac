"""GSD: exact, merged as by hand, and a draft cache in step."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, verifiers
from decoding_jax.testing import drafter_conformance, exactness
from support import helpers
from support import tiny_models as tiny

V, ROWS, LENGTH = 4, 50_000, 4
METHOD = dj.methods.gsd(5, 2, 2, 3, repeat=0)


def fit(method):
  target, draft = exactness.random_tables(V)
  counts, stats = exactness.frequencies(method, target, draft, ROWS, LENGTH)
  probs = exactness.joint_distribution(target, 0, LENGTH)
  return exactness.p_value(counts, probs), stats


def test_joint_distribution():
  p_value, stats = fit(METHOD)
  assert p_value > exactness.MIN_P_VALUE
  assert 1 < np.mean(stats.target_calls) < LENGTH
  assert np.asarray(stats.extra["tested_by_rank"])[:, 1].sum() > ROWS / 10


def test_control_children_taken_for_samples():
  def propose(keys, context, state):
    tree, pending = METHOD.sampled.drafter.propose(keys, context, state)
    return tree.replace(log_probs=jnp.full(
        (*tree.tokens.shape, V), -np.log(V))), pending

  pair = dj.Pair(METHOD.sampled.drafter._replace(propose=propose),
                 verifiers.recursive(replacement=False))
  assert fit(dj.Method("wrong", pair, None))[0] < helpers.MAX_P_VALUE_OF_CONTROL


def paths(table, *sizes):
  """The paths of the first tree after token 0."""
  drafter, found = drafters.gsd(*sizes), []

  def propose(keys, context, state):
    tree, pending = drafter.propose(keys, context, state)
    jax.debug.callback(found.append, tree)
    return tree, pending

  pair = verifiers.pair(drafter._replace(propose=propose), verifiers.match())
  exactness.frequencies(dj.Method("spied", pair, pair), table, table, 1, 1)
  jax.effects_barrier()
  tree = jax.tree.map(lambda x: np.asarray(x)[0], found[0])
  return [tuple(tree.tokens[np.flatnonzero(tree.mask[node])[1:]].tolist())
          for node in np.flatnonzero(tree.valid)[1:]]


def chance(table, path):
  return np.prod([table[a, b] for a, b in itertools.pairwise((0, *path))])


def best(table, number, depth):
  """The most probable texts of up to `depth` tokens after token 0."""
  every = [path for length in range(1, depth + 1)
           for path in itertools.product(range(V), repeat=length)]
  return sorted(every, key=lambda path: -chance(table, path))[:number]


# After 0 come 1 and 2, and after either 3.
TABLE = np.array([[.02, .5, .45, .03], [.05, .05, .1, .8], [.1, .05, .05, .8],
                  [.1, .65, .2, .05]])


def test_merged_nodes_are_expanded_once():
  """By the last token nothing is lost, in a model that knows no more.

  Two expansions a level find what takes the plain search more: its second one
  of level 2 is spent on another 3. Control: without merging some are missed.
  """
  sizes = 12, 2, 3, V
  merged = paths(TABLE, *sizes, 0, 0.0, 0.0)
  assert set(merged) == set(best(TABLE, 12, 3))
  assert {(1, 3, 1), (2, 3, 1)} <= set(merged)
  single = paths(TABLE, 12, 1, 3, V, 9, 0.0, 0.0)
  assert not {(1, 3, 1), (2, 3, 1)} <= set(single)


def test_pruned_children():
  """Not of a tenth of the best sibling, and below .7 without children."""
  assert set(paths(TABLE, 30, 4, 1, V, 0, 0.0, 0.3)) == {(1,), (2,)}
  found = paths(TABLE, 30, 4, 3, V, 0, 0.46, 0.3)
  assert set(found) == {(1,), (2,), (1, 3), (1, 3, 1), (1, 3, 2)}


def test_contract_of_drafters():
  drafter_conformance.check_drafter(drafters.gsd(5, 2, 2, 3, 1, 0.0, 0.1),
                                    rows=64, steps=2)


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
  np.testing.assert_array_equal(out.stats.target_calls, tiny.NEW / 3)
  np.testing.assert_array_equal(out.stats.draft_calls,
                                2 * out.stats.target_calls)


def test_rows_do_not_depend_on_each_other():
  models = tiny.llama_models()
  keys = jax.random.split(jax.random.key(7), 3)
  together = tiny.generate(METHOD, models, key=keys)
  alone = tiny.generate(METHOD, models, key=keys[1:2],
                        prompts=tiny.PROMPTS[1:2], lengths=tiny.LENGTHS[1:2])
  np.testing.assert_array_equal(together.tokens[1], alone.tokens[0])


@pytest.mark.parametrize("sizes, words", [
    (dict(nodes=0), "nodes=0"), (dict(width=0), "width=0"),
    (dict(repeat=-1), r"repeat \+ 1=0"), (dict(min_share=2), "min_share=2")],
                         ids=str)
def test_wrong_sizes(sizes, words):
  with pytest.raises(ValueError, match=words):
    dj.methods.gsd(**{"nodes": 5, "width": 2, "depth": 2, **sizes})
