"""A tree that is chosen at each step: by what, exact texts, counts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.kernels import random
from decoding_jax.speculation import drafters, tree as tree_lib, verifiers
from decoding_jax.speculation.drafters import adaptive_trees
from decoding_jax.testing import exactness
from support import tiny_models as tiny

make, chain, beam = dj.methods.adaptive, dj.methods.speculative, (
    dj.methods.rsd_s)


def sampler(method, target, draft):
  """Returns a sampler of batches of one row, which choose for themselves."""
  given = tiny.arguments(tiny.tables(target, draft))

  def run(key, prompt):
    return dj.generate(key, prompt[None], jnp.ones(1, jnp.int32),
                       method=method, max_new_tokens=4, **given).tokens[0, 1:]

  return jax.jit(lambda key, prompts: jax.vmap(run)(
      jax.random.split(key, len(prompts)), prompts))


def a_choice(methods, choose) -> dj.Method:
  """Returns a method of a choice `(context, state) -> [] int32`."""
  pairs = [method.sampled for method in methods]
  drafter = drafters.adaptive(tuple(x.drafter for x in pairs), 4, choose)
  return dj.Method("choice", verifiers.pair(drafter, pairs[0].verifier), None)


def peek(context, state):
  """Drafts this step's chain, and tests its second token only if it is 0."""
  keys = jax.vmap(random.fold_in)(state.keys, state.step)
  keys = jax.vmap(random.split, out_axes=1)(keys)[0]
  tree, _ = chain(2).sampled.drafter.propose(keys, context, state)
  return (tree.tokens[0, 2] == 0).astype(jnp.int32)


def look_back(context, state):
  """Depends as strongly on what the step before has drawn."""
  last = jnp.take_along_axis(state.tokens, state.length[:, None] - 1, axis=1)
  return (last[0, 0] == 0).astype(jnp.int32)


@pytest.mark.cases(2)
@pytest.mark.parametrize("methods", [
    *([chain(1, rule), beam(2, 2, rule)]
      for rule in ("recursive", "traversal", "shared_gumbel")),
    [dj.methods.specinfer(2, depth) for depth in (1, 2)]], ids=str)
def test_texts_of_one_row_are_exact(methods):
  """Costs at which both trees are chosen, and a memory of two steps."""
  target, draft = exactness.random_tables(3)
  method = make(methods, costs=(1, 1.25), horizon=2)
  dj.testing.assert_exact(sampler(method, target, draft), target, rows=40_000)


def test_control_a_choice_that_sees_the_drafts_is_detected():
  target, draft = exactness.random_tables(3)
  own, wrong = (sampler(a_choice([chain(1), chain(2)], choose), target, draft)
                for choose in (look_back, peek))
  report = dj.testing.assert_detects(own, wrong, target=target, rows=40_000)
  assert "tokens 1 to 2" in str(report)


LAYOUTS = {"chain": tree_lib.product_layout((1, 1)),
           "beam": tree_lib.beam_layout(3, 2)}


@pytest.mark.parametrize("layout, rate, tokens", [
    ("chain", 0.8, 1 + 0.8 + 0.64), ("chain", 0, 1), ("chain", 1, 3),
    # Of three siblings each later one is accepted half as often.
    ("beam", 0.8, 1 + (1 - 0.2 * 0.6**2) * 1.8), ("beam", 0, 1)])
def test_expected_tokens(layout, rate, tokens):
  np.testing.assert_allclose(adaptive_trees.expected_tokens(
      LAYOUTS[layout], jnp.array([rate], jnp.float32)), [tokens], rtol=1e-6)


@pytest.mark.parametrize("accepted, done, chosen", [
    ([0, 0], [False, False], 0), ([40, 40], [False, False], 1),
    # The sum of both decides, or the row alone that still runs.
    ([40, 0], [False, False], 1), ([40, 0], [True, False], 0)])
def test_the_most_expected_tokens_for_their_cost_are_chosen(accepted, done,
                                                            chosen):
  trees = tuple(chain(depth).sampled.drafter for depth in (1, 4))
  state = tiny.types.DecodeState(
      *[None] * 6, done=jnp.array(done), target_cache=None, draft_cache=None,
      carry=adaptive_trees.History(None, jnp.array(accepted, jnp.float32),
                                   jnp.full(2, 40.0)))
  assert adaptive_trees.by_acceptance(trees, 16, (1, 1.5), None,
                                      state) == chosen


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", [chain(3), beam(2, 2), dj.methods.sequoia(
    ((2,), (2, 0), (1, 1)))], ids=str)
def test_counts_are_of_the_tree_that_is_chosen(method):
  """A choice that never changes drafts, scores and accepts as its tree does."""
  trees = tuple(x.greedy.drafter for x in (chain(1), method, beam(4, 4)))
  drafter = drafters.adaptive(trees, 4, lambda context, state: jnp.int32(1))
  assert drafter.layout == tree_lib.free_layout(16, 4, 4)
  fixed = dj.Method("adaptive", None, verifiers.pair(drafter,
                                                     verifiers.match()))
  models = tiny.llama_models()
  out, alone = (tiny.generate(x, models, sampling=dj.Sampling(temperature=0))
                for x in (fixed, method))
  np.testing.assert_array_equal(out.tokens, alone.tokens)
  for name in ("target_calls", "draft_calls", "nodes", "emitted"):
    np.testing.assert_array_equal(getattr(out.stats, name),
                                  getattr(alone.stats, name))
  steps = np.asarray(out.stats.extra["steps_by_tree"])
  np.testing.assert_array_equal(steps[:, 1], alone.stats.target_calls)
  assert not steps[:, [0, 2]].any()


WRONG = [
    ([chain(2)], {}, r"methods=\(speculative\(2\),\): a list of two"),
    ([chain(2), dj.methods.autoregressive()], {}, "autoregressive: a tree of"),
    ([chain(2), dj.methods.opt_tree(4, 2, 2)], {}, "opt_tree.*: a tree of"),
    ([chain(2), dj.methods.cdsl(2, 2)], {}, "cdsl.*: a tree of"),
    ([dj.methods.spectr(2, 2)] * 2, {}, "spectr.*: a tree of"),
    ([beam(2, 2, "layer")] * 2, {}, "verification recursive, traversal"),
    ([chain(2), beam(2, 2, "traversal")], {}, "the same verification"),
    # Of noise that is shared, a fresh draw would not be independent.
    ([chain(2), chain(2, "shared_gumbel")], {}, "the same verification"),
    ([chain(1), chain(2)], dict(costs=(1,)), r"costs=\(1,\): one of each of"),
    ([chain(1), chain(2)], dict(costs=(1, 0)), "costs=0: a number from"),
    ([chain(1), chain(2)], dict(horizon=0), "horizon=0: a positive integer")]


@pytest.mark.parametrize("methods, options, words", WRONG)
def test_wrong_methods_and_options(methods, options, words):
  with pytest.raises(ValueError, match=words):
    make(methods, **options)


def test_costs_are_by_parameters_and_nodes():
  """A drafter of half of the size, in two forwards, and three nodes."""
  target, draft = (jnp.zeros(size, jnp.float32) for size in (8, 4))
  context = tiny.types.Context(
      *[None] * 12).replace(target_params=target, draft_params=draft)
  tree = dj.methods.sequoia(((2,), (1, 0))).sampled.drafter
  np.testing.assert_allclose(adaptive_trees.predicted_cost(context, tree),
                             1 + 3 * 0.02 + 2 * 0.5)
