"""CDLH against plain Python, its distributions, its program."""

import functools

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import exactness
from support import lookahead_reference as reference, tiny_models as tiny
from support.helpers import check_same

GREEDY = dj.Sampling(temperature=0)
ROWS, V, NEW, EOS = 24, 7, 9, 2
PROMPTS = np.random.default_rng(1).integers(0, V, (ROWS, 3)).astype(np.int32)
LENGTHS = np.arange(ROWS, dtype=np.int32) % 3 + 1
LOOK = reference.Look(3, 4)
# Without the probability of a token in its score.
REWARD_ALONE = reference.Look(3, 4, 0, 0.5)


def tables(seed=0, zeros=0):
  """A target and a draft that often agree with it."""
  rng = np.random.default_rng(seed)
  target = exactness.random_table(rng, V, zeros)
  draft = 0.6 * target + 0.4 * exactness.random_table(rng, V)
  return tiny.tables(target, draft)


def values(seed=0, rows=ROWS):
  """Of the states of the reward, in each row."""
  return np.random.default_rng((7, seed)).normal(
      size=(rows, tiny.STATES)).astype(np.float32)


def run(method, seed=0, models=None, prompts=PROMPTS, lengths=LENGTHS,
        constraints=None, rows=slice(None), **kwargs):
  """On tables, unless models are given."""
  if constraints is None:
    constraints = values(seed, len(prompts))
  kwargs = {"eos_id": EOS, "new": NEW, "sampling": GREEDY, "reward_params": 1.0,
            "reward": tiny.table_reward(), **kwargs}
  return tiny.generate(method, models or tables(seed), prompts=prompts[rows],
                       lengths=lengths[rows], constraints=constraints[rows],
                       **kwargs)


def rows_of_tables(seed=0, eos=EOS, new=NEW, models=None):
  """What `run` decodes, for the reference."""
  models = [np.asarray(model.params[0]) for model in models or tables(seed)]
  target, draft = (lambda text, table=table: table[text[-1]]
                   for table in models)
  for prompt, length, table in zip(PROMPTS, LENGTHS, values(seed)):
    yield reference.Row(prompt[:length].tolist(), new, eos, target, draft,
                        functools.partial(tiny.table_value, table))


def forward(model, text):
  """The logits after a text, without a cache."""
  tokens = np.zeros((1, tiny.PROMPTS.shape[1] + tiny.NEW), np.int32)
  tokens[0, :len(text)] = text
  return np.asarray(tiny.causal(model, tokens)[0])[0, len(text) - 1]


def rows_of_transformers(models, eos=None):
  """As `rows_of_tables`, on the prompts and models of `tiny_models`."""
  for prompt, length, table in zip(tiny.PROMPTS, tiny.LENGTHS, values(0)):
    yield reference.Row(
        prompt[:length].tolist(), tiny.NEW, eos,
        *(functools.partial(forward, model) for model in models),
        functools.partial(tiny.table_value, table))


def run_transformers(method, models, **kwargs):
  return run(method, models=models, prompts=tiny.PROMPTS, lengths=tiny.LENGTHS,
             **{"new": tiny.NEW, "eos_id": None, **kwargs})


def transformers(method, models):
  """Runs all rows, and checks that one of them is the same alone."""
  out, alone = run_transformers(method, models), slice(1, 2)
  check_same(run_transformers(method, models, rows=alone), out, alone)
  return out


@pytest.mark.cases(1)
@pytest.mark.parametrize("rollout", ["target", "draft"])
@pytest.mark.parametrize("look", [LOOK, REWARD_ALONE], ids=str)
def test_equals_plain_python(rollout, look):
  look = look._replace(rollout=rollout)
  for seed in range(4):
    out = run(dj.methods.cdlh(*look), seed)
    expected = [reference.cdlh(row, look) for row in rows_of_tables(seed)]
    assert tiny.texts(out, LENGTHS) == expected
  assert {len(text) for text in expected} > {1, 2, NEW}


@pytest.mark.parametrize("other", [
    LOOK._replace(n=3), LOOK._replace(k=2), LOOK._replace(weight=0),
    LOOK._replace(reward_weight=0.5), LOOK._replace(rollout="draft")], ids=str)
def test_control_other_options_are_another_method(other):
  out = run(dj.methods.cdlh(*LOOK))
  assert tiny.texts(out, LENGTHS) != [reference.cdlh(row, other)
                                      for row in rows_of_tables()]


@pytest.mark.cases(1)
@pytest.mark.parametrize("rollout", ["target", "draft"])
def test_transformers_equal_plain_forwards(rollout):
  """The slots of candidates and roll-outs, masks, positions; a row alone."""
  look, models = LOOK._replace(rollout=rollout), tiny.llama_models()
  out = transformers(dj.methods.cdlh(*look), models)
  expected = [reference.cdlh(row, look) for row in rows_of_transformers(models)]
  assert tiny.texts(out, tiny.LENGTHS) == expected
  assert expected != tiny.greedy(models.target, tiny.PROMPTS, tiny.LENGTHS,
                                 tiny.NEW)


def test_positions_end_with_the_model():
  """Learned positions, as many as the run has: no roll-out goes beyond."""
  models = tiny.opt_models()
  assert models.target.lm.max_length == tiny.PROMPTS.shape[1] + tiny.NEW
  out = run_transformers(dj.methods.cdlh(*LOOK), models)
  assert tiny.texts(out, tiny.LENGTHS) == [
      reference.cdlh(row, LOOK) for row in rows_of_transformers(models)]


def greedy_text(row):
  return reference.follow(row, row.target, row.prompt, row.new)[
      len(row.prompt):]


@pytest.mark.parametrize("look", [reference.Look(1, 4),
                                  reference.Look(3, 4, 1, 0.0)], ids=str)
def test_one_candidate_or_no_reward_is_greedy(look):
  out = run(dj.methods.cdlh(*look))
  assert tiny.texts(out, LENGTHS) == [greedy_text(x) for x in rows_of_tables()]
  # Without weight a reward of no text does not matter.
  out = run(dj.methods.cdlh(3, 4, 1, 0.0),
            constraints=np.where(values() > 0, -np.inf, values()))
  assert tiny.texts(out, LENGTHS) == [greedy_text(x) for x in rows_of_tables()]


def test_of_equal_scores_the_more_probable_is_taken():
  """All scores are 0; and of two equally probable tokens, the first."""
  table = np.tile([0.1, 0.1, 0.3, 0.3, 0.2, 0, 0], (V, 1))
  out = run(dj.methods.cdlh(*REWARD_ALONE), models=tiny.tables(table),
            constraints=0 * values(), eos_id=None)
  assert tiny.texts(out, LENGTHS) == [[2] * NEW] * ROWS


def test_tokens_that_may_not_occur_are_no_candidates():
  """Fewer than k are left in every distribution, and a mask takes away more."""
  models = tables(5, zeros=V - 2)
  out = run(dj.methods.cdlh(*REWARD_ALONE), 5, models)
  table = np.asarray(models.target.params[0])
  for prompt, length, text in zip(PROMPTS, LENGTHS, tiny.texts(out, LENGTHS)):
    before = [prompt[length - 1], *text[:-1]]
    assert np.isfinite(table[before, text]).all()
  mask = np.arange(V) != 4
  out = run(dj.methods.cdlh(*LOOK),
            sampling=dj.Sampling(temperature=0, token_mask=mask))
  masked = tiny.Models(*(tiny.Model(
      m.lm, (np.where(mask, m.params[0], -np.inf),)) for m in tables()))
  assert tiny.texts(out, LENGTHS) == [
      reference.cdlh(row, LOOK) for row in rows_of_tables(models=masked)]


def test_counts():
  """Of forwards, those that a row needed; no more than the cost model says."""
  emitted = None
  for rollout in ("target", "draft"):
    out = run(dj.methods.cdlh(*LOOK._replace(rollout=rollout)))
    stats = jax.tree.map(np.asarray, out.stats)
    calls = [stats.target_calls, stats.draft_calls]
    rolled = calls[rollout == "draft"]
    emitted = stats.emitted
    assert (rolled <= 1 + LOOK.n * emitted).all() and (rolled > emitted).any()
    np.testing.assert_array_equal(stats.extra["reward_calls"], LOOK.k * emitted)
    np.testing.assert_array_equal(stats.accepted_by_depth[:, 0], emitted)
  np.testing.assert_array_equal(stats.target_calls, emitted)
  # Without an end of text, what is cut off is cut off by the budget.
  out = run(dj.methods.cdlh(*LOOK), eos_id=None)
  cut = LOOK.n * (LOOK.n + 1) // 2
  assert (np.asarray(out.stats.target_calls) == 1 + LOOK.n * NEW - cut).all()


def test_a_budget_of_one_token():
  out = run(dj.methods.cdlh(*LOOK), new=1)
  assert tiny.texts(out, LENGTHS) == [
      reference.cdlh(row, LOOK) for row in rows_of_tables(new=1)]
  assert np.asarray(out.stats.target_calls).tolist() == [1] * ROWS


def test_other_values_are_not_compiled_anew():
  size = tiny.generate_lib._generate.num_programs
  method = dj.methods.cdlh(*LOOK)
  first = run(method)
  before = size()
  run(method, seed=1, key=jax.random.key(1))
  run(method, eos_id=3)
  other = run(dj.methods.cdlh(num_candidates=3, lookahead=4), prompts=PROMPTS,
              constraints=values(9), reward_params=2.0)
  assert size() == before
  assert not np.array_equal(first.tokens, other.tokens)


def test_it_is_greedy_and_needs_a_reward_and_tokens():
  with pytest.raises(ValueError, match="sampling.temperature=1.0: method cdlh"):
    run(dj.methods.cdlh(*LOOK), sampling=dj.Sampling())
  with pytest.raises(ValueError, match="reward=None: method cdlh"):
    tiny.generate(dj.methods.cdlh(*LOOK), tables(), prompts=PROMPTS,
                  lengths=LENGTHS, sampling=GREEDY)
  with pytest.raises(ValueError, match=f"{V + 1} siblings"):
    run(dj.methods.cdlh(V + 1, 2))
