"""CDSL against plain Python, its invariants, its program."""

import jax
import numpy as np
import pytest

import decoding_jax as dj
from library.search.lookahead import test_cdlh as cdlh
from support import lookahead_reference as reference, tiny_models as tiny
from support.helpers import check_same

LOOK = cdlh.LOOK
# Options of several tests, which share a program.
RISING = dict(acceptance_threshold=0.75, commit_rollout=True, commit="rise")
# Those of the variants, which `cdsl` does not have.
EXTENDED = {"commit", "commit_rollout", "low_acceptance", "width", "tree",
            "slack"}


def make(look=LOOK, **options):
  """Makes the method that has these options."""
  make_method = (dj.methods.cdsl_extended if EXTENDED & options.keys() else
                 dj.methods.cdsl)
  return make_method(look.n, look.k, look.weight, look.reward_weight,
                     rollout=look.rollout, **options)


def rules(acceptance_threshold=0.5, reward_threshold=None, **options):
  """Returns the same options for the reference."""
  test = lambda before, after: (
      after > before if reward_threshold is None else
      after >= np.float32(reward_threshold))
  return reference.Rules(acceptance_threshold, test, **options)


def check(out, expected, lengths, k=LOOK.k, width=1, commit="prefix", again=0):
  """Asserts texts and counts; returns the sum of the states."""
  assert tiny.texts(out, lengths) == [text for text, _ in expected]
  states = np.array([np.bincount([state for state, _ in log], minlength=4)
                     for _, log in expected])
  np.testing.assert_array_equal(out.stats.extra["states"], states)
  stats = jax.tree.map(np.asarray, out.stats)
  high, low = states[:, :2].sum(1), states[:, 2:].sum(1)
  steps = stats.accepted_by_depth.shape[1] - 1
  searches = k * states[:, 1::2].sum(1)
  # The draws of a tree are compared; and its drafter may have to catch up.
  draws, late = (width * steps, 1) if width > 1 else (0, 0)
  rewards = stats.extra["reward_calls"] - searches
  # Where the reward rises is seen after each token that may be committed.
  rises, least = (steps + 1, stats.emitted) if commit == "rise" else (0, 0)
  assert ((high + least <= rewards) &
          (rewards <= (1 + draws + rises) * (high + low) + again * low)).all()
  np.testing.assert_array_equal(stats.accepted_by_depth.sum(1), high + low)
  assert ((high + low <= stats.emitted) &
          (stats.emitted <= (steps + 1) * (high + low))).all()
  most = states @ [0, steps, steps, 2 * steps]
  assert (stats.target_calls + stats.draft_calls <=
          (steps + 1 + late) * (high + low) + most).all()
  for _, log in expected:
    assert all(1 <= count <= steps + 1 for _, count in log)
  return states.sum(axis=0)


@pytest.mark.cases(2)
@pytest.mark.parametrize("rollout, options", [
    ("target", {}),
    ("target", dict(acceptance_threshold=0.3, commit="full")),
    ("target", dict(acceptance_threshold=1, low_acceptance="search")),
    ("draft", dict(acceptance_threshold=2 / 3, reward_threshold=0.2)),
    ("draft", dict(acceptance_threshold=2 / 3, reward_threshold=0.2,
                   slack=0.7)),
    ("target", dict(acceptance_threshold=0.75, width=3, commit_rollout=True)),
    ("target", RISING),
    ("draft", dict(acceptance_threshold=0.75, width=3, slack=1.5)),
    ("target", dict(acceptance_threshold=0.75, low_acceptance="prefix")),
    ("draft", dict(acceptance_threshold=0.75, low_acceptance="regenerate",
                   commit="full")),
    ("target", dict(acceptance_threshold=0.75, low_acceptance="confirm")),
], ids=str)
def test_equals_plain_python(rollout, options):
  look = LOOK._replace(rollout=rollout)
  states = 0
  for seed in range(4):
    out = cdlh.run(make(look, **options), seed)
    expected = [reference.cdsl(row, look, rules(**options))
                for row in cdlh.rows_of_tables(seed)]
    states += check(out, expected, cdlh.LENGTHS, width=options.get("width", 1),
                    commit=options.get("commit", "prefix"),
                    again=options.get("low_acceptance") == "confirm")
  assert (states > 0).tolist() == [
      True, True, options.get("low_acceptance") != "search", True]


@pytest.mark.parametrize("other", [
    dict(acceptance_threshold=0.75), dict(low_acceptance="search"),
    dict(low_acceptance="prefix"), dict(low_acceptance="regenerate"),
    dict(low_acceptance="confirm"), dict(commit="full"), dict(commit="rise"),
    dict(reward_threshold=0.0), dict(slack=0.7), dict(width=3),
    dict(commit_rollout=True)], ids=str)
def test_control_other_options_are_another_method(other):
  texts = tiny.texts(cdlh.run(make()), cdlh.LENGTHS)
  assert texts != [reference.cdsl(row, LOOK, rules(**other))[0]
                   for row in cdlh.rows_of_tables()]


@pytest.mark.cases(1)
@pytest.mark.parametrize("rollout, options", [
    ("target", RISING),
    ("draft", dict(acceptance_threshold=0.75, width=2, slack=0.3))], ids=str)
def test_transformers_equal_plain_forwards(rollout, options):
  """The caches after each state; the draft's falls far after in most."""
  look, models = LOOK._replace(rollout=rollout), tiny.llama_models()
  out = cdlh.run_transformers(make(look, **options), models)
  states = check(out, [
      reference.cdsl(row, look, rules(**options))
      for row in cdlh.rows_of_transformers(models)], tiny.LENGTHS,
                 width=options.get("width", 1),
                 commit=options.get("commit", "prefix"))
  assert (states[:3] > 0).all(), states


def tolls(rows, scale):
  """Constraints of `toll_reward`: 0 always passes, more than 0 never does."""
  rng = np.random.default_rng(3)
  return (scale * rng.random((rows, tiny.STATES)) + scale).astype(np.float32)


def run_with_tolls(method, scale, run=cdlh.run, rows=cdlh.ROWS, **kwargs):
  return run(method, reward=tiny.toll_reward(), reward_params=None,
             constraints=tolls(rows, scale), **kwargs)


@pytest.mark.cases(1)
@pytest.mark.parametrize("options", [{}, dict(width=3, tree="rsd_c")], ids=str)
def test_rewards_that_always_pass_are_greedy(options):
  """Invariant 1, whatever the drafter."""
  method = make(acceptance_threshold=0, **options)
  other = cdlh.tables(1).target
  for models in (cdlh.tables(), tiny.Models(cdlh.tables().target, other)):
    out = run_with_tolls(method, 0, models=models)
    expected = [cdlh.greedy_text(x) for x in cdlh.rows_of_tables()]
    assert tiny.texts(out, cdlh.LENGTHS) == expected
    states = np.asarray(out.stats.extra["states"])
    assert not states[:, 1:].any()
    np.testing.assert_array_equal(states[:, 0], out.stats.target_calls)


@pytest.mark.cases(1)
@pytest.mark.parametrize("options", [
    dict(acceptance_threshold=0), dict(low_acceptance="search")], ids=str)
def test_rewards_that_never_pass_are_cdlh(options):
  """Invariant 2; its control is the next test."""
  out = run_with_tolls(make(**options), 0.5)
  expected = run_with_tolls(dj.methods.cdlh(*LOOK), 0.5)
  np.testing.assert_array_equal(out.tokens, expected.tokens)
  assert not np.asarray(out.stats.extra["states"])[:, ::2].any()


def test_control_rewards_that_pass_at_times_are_not():
  assert not np.array_equal(cdlh.run(make()).tokens,
                            cdlh.run(dj.methods.cdlh(*LOOK)).tokens)


def test_a_target_that_drafts_for_itself_is_always_right():
  """Invariant 3."""
  target = cdlh.tables().target
  stats = cdlh.run(make(), models=tiny.Models(target, target)).stats
  accepted = np.asarray(stats.accepted_by_depth) @ np.arange(LOOK.n + 1)
  np.testing.assert_array_equal(accepted, stats.nodes)
  states = np.asarray(stats.extra["states"])
  assert not states[:, 2:].any() and states[:, :2].all(axis=1).any()


def test_control_whole_drafts_are_not_greedy():
  """With `commit="full"` the first invariant does not hold."""
  out = run_with_tolls(make(acceptance_threshold=0, commit="full"), 0)
  assert tiny.texts(out, cdlh.LENGTHS) != [
      cdlh.greedy_text(x) for x in cdlh.rows_of_tables()]


def test_a_tree_with_the_chain_in_it_is_accepted_further():
  """What the chain gets of the target, such a tree gets as well."""
  calls = [np.asarray(run_with_tolls(
      make(acceptance_threshold=0, width=width, tree="rsd_c"), 0
  ).stats.target_calls) for width in (1, 3)]
  assert (calls[1] <= calls[0]).all() and (calls[1] < calls[0]).any()


@pytest.mark.long
def test_rows_alone_and_in_a_batch():
  """Invariant 6: rows in different states, and one at its end."""
  models, method = tiny.llama_models(), make(**RISING)
  expected = cdlh.run_transformers(method, models)
  for row in range(3):
    alone = slice(row, row + 1)
    check_same(cdlh.run_transformers(method, models, rows=alone), expected,
               alone)


@pytest.mark.cases(1)
@pytest.mark.parametrize("look, new", [(LOOK, 1), (reference.Look(2, 1), 5)],
                         ids=str)
def test_short_budgets_and_lookaheads(look, new):
  out = cdlh.run(make(look), new=new)
  check(out, [reference.cdsl(row, look, rules())
              for row in cdlh.rows_of_tables(new=new)], cdlh.LENGTHS, look.k)


def test_other_values_are_not_compiled_anew():
  size = tiny.generate_lib._generate.num_programs
  cdlh.run(make())
  before = size()
  cdlh.run(make(), seed=2, key=jax.random.key(1), eos_id=4)
  cdlh.run(dj.methods.cdsl(num_candidates=3, lookahead=4), reward_params=3.0)
  assert size() == before


@pytest.mark.long
def test_extended_without_variants_is_cdsl():
  """Control: with one it is not; see above for all of them."""
  result = cdlh.run(make(commit="prefix"))
  check_same(result, cdlh.run(make()))
  assert not np.array_equal(result.tokens, cdlh.run(make(commit="full")).tokens)


def test_it_needs_a_drafter():
  target = cdlh.tables().target
  with pytest.raises(ValueError, match="draft=None: method cdsl"):
    dj.generate(jax.random.key(0), cdlh.PROMPTS, cdlh.LENGTHS, method=make(),
                target=target.lm, target_params=target.params,
                sampling=cdlh.GREEDY)
