"""What all drafters keep: texts, contracts, rows of their own, sizes."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.testing import drafter_conformance, exactness
from support import helpers, tiny_models as tiny

V, ROWS, LENGTH, BUCKETS = 5, 50_000, 4, 37
TARGET, DRAFT = exactness.random_tables(V)
GREEDY = dj.Sampling(0.0)
_RNG = np.random.default_rng(3)


class Case(NamedTuple):
  """A method whose drafts are no samples, and what its drafter starts with."""
  method: dj.Method
  start: Any = None  # `draft_params` of a drafter that is no model
  prompt: tuple = (0,)
  zeros: tuple = (0, 0)  # Of the target's distributions and the drafter's


def trigrams():
  """A start table of `aded`; some of its entries are not known."""
  tokens = np.stack([_RNG.permutation(V)[:3] for _ in range(BUCKETS)])
  tokens[::4, 1:] = -1
  return tokens.astype(np.int32), np.where(
      tokens < 0, 0, _RNG.uniform(size=tokens.shape)).astype(np.float32)


def successors():
  """A start table of `token_recycling`; some of its entries are not known."""
  table = np.stack([_RNG.permutation(V)[:3] for _ in range(V)])
  table[1, 1:] = -1
  return table.astype(np.int32)


OTHERS = np.random.default_rng(5).integers(0, V, 60).astype(np.int32)
CASES = {
    "opt_tree": Case(dj.methods.opt_tree(4, 3, 2)),
    "gsd": Case(dj.methods.gsd(5, 2, 2, 3, repeat=0)),
    # All that may follow 1, 2 and so on has followed it before.
    "lookahead": Case(dj.methods.lookahead(3, 3, 2, V),
                      prompt=(1, 2, 0, 1, 3, 1, 2, 4, 2, 1)),
    "aded": Case(dj.methods.aded(6, 3, 3, BUCKETS), trigrams()),
    "token_recycling": Case(dj.methods.token_recycling((3, 3), 3),
                            successors()),
    "prompt_lookup": Case(dj.methods.prompt_lookup(2, 2), OTHERS),
    "suffix": Case(dj.methods.suffix(5, 2, 6, 2, 0.0), OTHERS),
    "opt_tree of zeros": Case(dj.methods.opt_tree(
        6, 3, 2, rank_all=True, threshold=0.5), zeros=(1, 2))}
ONCE = [name for name in CASES if name != "opt_tree of zeros"]
# Of drafters that are no model.
LEARNING = [name for name in ONCE if name not in ("opt_tree", "gsd")]


def generate(method, prompts, new, key=0, **arguments):
  lm, params = exactness.table_model(TARGET)
  prompts = np.asarray(prompts, np.int32)
  return dj.generate(
      jax.random.key(key) if isinstance(key, int) else key, prompts,
      np.full(len(prompts), prompts.shape[1], np.int32), method=method,
      target=lm, target_params=params, max_new_tokens=new, **arguments)


def fit(case, method=None, **changes):
  """The p-value of texts, and their statistics."""
  method, start, prompt, zeros = case._replace(
      method=method or case.method, **changes)
  target, draft = exactness.random_tables(V, *zeros)
  given = dict(draft_params=start)
  lm, params = exactness.table_model(target)
  if method.sampled.drafter.calls:
    given["draft"], given["draft_params"] = exactness.table_model(draft)
  out = dj.generate(
      jax.random.key(0), np.tile(prompt, (ROWS, 1)),
      np.full(ROWS, len(prompt)), method=method, target=lm,
      target_params=params, max_new_tokens=LENGTH, **given)
  return exactness.p_value(
      exactness.count(out.tokens[:, -LENGTH:], V),
      exactness.joint_distribution(target, prompt[-1], LENGTH)), out.stats


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", CASES)
def test_joint_distribution(name):
  p_value, stats = fit(CASES[name])
  assert p_value > exactness.MIN_P_VALUE
  # Two calls and more; some drafts are accepted, and second children tested.
  assert 1 < np.mean(stats.target_calls) < LENGTH
  assert np.asarray(stats.extra["tested_by_rank"])[:, 1].sum() > ROWS / 10


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", ONCE)
def test_control_children_taken_for_samples(name):
  drafter = CASES[name].method.sampled.drafter

  def propose(*arguments):
    tree, pending = drafter.propose(*arguments)
    return tree.replace(log_probs=jnp.full(
        (*tree.tokens.shape, V), -np.log(V))), pending

  pair = dj.Pair(drafter._replace(propose=propose),
                 verifiers.recursive(replacement=False))
  p_value, _ = fit(CASES[name], dj.Method("wrong", pair, None))
  assert p_value < helpers.MAX_P_VALUE_OF_CONTROL


def test_control_tested_children_that_keep_their_mass():
  def rule(uniforms, target, draft, tokens, valid):
    del draft
    hits = valid & (uniforms[:len(tokens)] < target[tokens])
    rest = target.at[jnp.where(valid, tokens, len(target))].set(0, mode="drop")
    return jnp.where(hits.any(), jnp.argmax(hits), -1), rest

  case = CASES["suffix"]
  pair = case.method.sampled
  wrong = pair._replace(verifier=pair.verifier._replace(rule=rule))
  assert fit(case, dj.Method("wrong", wrong, None))[0] < (
      helpers.MAX_P_VALUE_OF_CONTROL)


def test_start_tables_with_tokens_that_the_target_lacks():
  tokens, scores = trigrams()
  tokens[:, 0] += V
  table = successors()
  table[:, 0] += V
  others = np.where(np.arange(len(OTHERS)) % 3, OTHERS, V + OTHERS)
  for name, start in (("aded", (tokens, scores)), ("token_recycling", table),
                      ("suffix", others.astype(np.int32))):
    assert fit(CASES[name], start=start)[0] > exactness.MIN_P_VALUE, name


@pytest.mark.parametrize("name, start, words", [
    ("aded", np.zeros((2, 2), np.int32), "draft_params have shapes"),
    ("aded", (np.zeros((3, 3)),) * 2, "draft_params have shapes"),
    ("token_recycling", np.zeros((2, 2), np.int32),
     r"draft_params has shape \(2, 2\)"),
    ("suffix", np.zeros((2, 3), np.int32),
     r"draft_params have shapes \[\(2, 3\)")])
def test_start_tables_of_another_shape(name, start, words):
  with pytest.raises(ValueError, match=words):
    generate(CASES[name].method, [[0, 1]], 4, draft_params=start)


@pytest.mark.parametrize("name", LEARNING)
def test_greedy_text_is_the_targets(name):
  """It comes to a cycle, which the drafter knows then: fewer calls."""
  prompts = [[0, 1, 2, 0, 1], [3, 3, 3, 3, 4]]
  plain, got = (generate(method, prompts, 24, sampling=GREEDY) for method in (
      dj.methods.autoregressive(), CASES[name].method))
  np.testing.assert_array_equal(got.tokens, plain.tokens)
  assert got.stats.target_calls.max() < plain.stats.target_calls.min()
  assert not got.stats.draft_calls.any()


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", LEARNING)
def test_rows_learn_by_themselves(name):
  method, start, *_ = CASES[name]
  keys = jax.random.split(jax.random.key(1), 6)
  prompts = np.random.default_rng(0).integers(0, V, (6, 9))
  run = lambda chosen, **kwargs: generate(
      method, prompts[chosen], 12, keys[chosen], draft_params=start, **kwargs)
  together = run(np.arange(6))
  np.testing.assert_array_equal(together.tokens[4],
                                run(np.array([4])).tokens[0])
  helpers.check_same(run(np.arange(6), rows=2), together)


def test_rows_of_a_draft_graph_do_not_depend_on_each_other():
  method, models = CASES["gsd"].method, tiny.llama_models()
  keys = jax.random.split(jax.random.key(7), 3)
  together = tiny.generate(method, models, key=keys)
  alone = tiny.generate(method, models, key=keys[1:2],
                        prompts=tiny.PROMPTS[1:2], lengths=tiny.LENGTHS[1:2])
  np.testing.assert_array_equal(together.tokens[1], alone.tokens[0])


@pytest.mark.parametrize("name", ["opt_tree", "opt_tree of zeros", "gsd"])
def test_a_draft_cache_in_step_accepts_whole_paths(name):
  """The target, made certain of its tokens, drafts for itself: the best path is
  in each tree then; with a wrong cache some would be missed."""
  lm, params = tiny.llama_models().target
  certain = tiny.Model(lm, {**params, "head": 50 * params["head"]})
  out = tiny.generate(CASES[name].method, tiny.Models(certain, certain),
                      sampling=GREEDY)
  assert tiny.texts(out, tiny.LENGTHS) == tiny.greedy(
      certain, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  np.testing.assert_array_equal(out.stats.target_calls, tiny.NEW / 3)
  np.testing.assert_array_equal(out.stats.draft_calls,
                                2 * out.stats.target_calls)


COPIES = dict(copies=3, min_ngram=1, max_ngram=2)


@pytest.mark.cases(3)
@pytest.mark.parametrize("drafter, rows", [
    (drafters.best_first(6, 3, 2, rank_all=True, threshold=0.5), 200),
    (drafters.gsd(5, 2, 2, 3, 1, 0.0, 0.1), 64),
    (CASES["lookahead"].method.sampled.drafter, 64),
    (CASES["aded"].method.sampled.drafter, 64),
    (dj.methods.copy_or_draft(2, **COPIES).sampled.drafter, 50),
    (dj.methods.copy_or_draft(1, **COPIES, width=2).sampled.drafter, 50),
    (drafters.merged(drafters.of_model(expanders.iid_paths(2, 2)),
                     drafters.token_recycling((2, 2), 2),
                     drafters.prompt_lookup(3, 1, 2)), 20),
    *(pytest.param(drafters.of_model(expanders.product_tree((2, 2), draws)),
                   200, marks=marks) for draws, marks in (
                       (dj.Draws.ONE_SAMPLED, pytest.mark.long),
                       (dj.Draws.SHARED_NOISE, ())))],
    ids=["best_first", "gsd", "lookahead", "aded", "copied_or",
         "copied siblings", "merged", "one sampled", "shared noise"])
def test_contract(drafter, rows):
  drafter_conformance.check_drafter(drafter, rows=rows, steps=2)


def test_wrong_pairs_are_refused():
  for drafter in (drafters.best_first(4, 3, 2),
                  drafters.token_recycling((3, 3), 3)):
    with pytest.raises(ValueError, match="Drafter.draws=ARBITRARY"):
      dj.pair(drafter, verifiers.recursive(False))


CHAIN = expanders.top_k((1, 1))
PROPD = dict(branching=(3, 2), layers=1)
WRONG = [
    (dj.methods.opt_tree, (0, 2, 2), "nodes=0: a positive integer"),
    (dj.methods.opt_tree, (5, 2, 2), r"nodes=5: depth=2 to width \* depth=4"),
    (dj.methods.opt_tree, (1, 2, 2), r"nodes=1: depth=2 to width \* depth=4"),
    (dj.methods.opt_tree, (2, 2, "2"), "depth='2': a positive integer"),
    (dj.methods.opt_tree, (7, 2, 2, 1, True), "nodes=7: depth=2 to .*=6 nodes"),
    (dj.methods.opt_tree, (2, 2, 2, 1, True, 2), "threshold=2: a number from"),
    (drafters.copied_or, (CHAIN, 1, 2, 3), "copies=1: 2 or more"),
    (drafters.copied_or, (CHAIN, 4, 3, 2), "max_ngram=2: 3 or more"),
    (drafters.copied_or, (expanders.top_k((2, 1)), 4, 2, 3),
     "a chain is needed"),
    (dj.methods.gsd, (0, 2, 2), "nodes=0"),
    (dj.methods.gsd, (5, 0, 2), "width=0"),
    (dj.methods.gsd, dict(nodes=5, width=2, depth=2, repeat=-1),
     r"repeat \+ 1=0"),
    (dj.methods.gsd, dict(nodes=5, width=2, depth=2, min_share=2),
     "min_share=2"),
    (dj.methods.lookahead, (1, 3, 2), "ngram=1: a number from 2"),
    (dj.methods.lookahead, (3, 0, 2), "window=0"),
    (dj.methods.lookahead, (3, 3, 2, 0), "buckets=0"),
    (dj.methods.propd, dict(PROPD, nodes=1), "nodes=1: a number from 2"),
    (dj.methods.propd, dict(PROPD, nodes=10), "nodes=10: a number from 2"),
    (dj.methods.propd, ((3, 0), 2, 1), "branching"),
    (dj.methods.propd, ((3,), 2, 0), "layers"),
    (dj.methods.aded, (6, 3, 3, 0), "buckets=0"),
    (dj.methods.aded, dict(nodes=6, depth=3, branching=3, simulations=5),
     "simulations=5: 0, or .* from 6 on"),
    (dj.methods.aded, dict(nodes=6, depth=3, branching=3, window=2),
     "window=2: 0, or an integer from 3 on"),
    (drafters.aded, (6, 3, "3", 4), "branching='3'"),
    *((dj.methods.shared_budget, {"nodes": 2, "width": 2, "depth": 2, **given},
       words) for given, words in (
           (dict(nodes=0), "nodes=0: a number from 0.01 to 4"),
           (dict(nodes=5), "nodes=5: a number from 0.01 to 4"),
           (dict(most=1), "most=1: a number from 2 to 4"),
           (dict(verification="conditional_ot"),
            "verification='conditional_ot'"),
           (dict(verification="rheo"),
            "verification='rheo': one of 'match', 're"),
           (dict(verification="layer"),
            "'match', 'recursive', 'traversal', 'shared"),
           (dict(rank_temperature=0),
            "rank_temperature=0: a number from 0.01")))]


@pytest.mark.parametrize("make, sizes, words", WRONG)
def test_wrong_sizes(make, sizes, words):
  with pytest.raises(ValueError, match=words):
    make(**sizes) if isinstance(sizes, dict) else make(*sizes)
