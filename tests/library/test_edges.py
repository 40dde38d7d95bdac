"""Degenerate distributions, ends, budgets and sizes, through `generate`."""

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny
from support.example_methods import (depth, each, EACH, EACH_DRAFTING,
                                     whole_trees)

# Those whose greedy drafters differ.
EACH_GREEDY = each([dj.methods.speculative(3), dj.methods.rsd_c((2, 2)),
                    dj.methods.rsd_s(3, 2)])
# One shape for nearly all runs, and a budget that is a multiple of what each
# method emits at most.
ROWS, NEW, V = 16, 12, 6
# Token i is followed by i + 1, for certain.
CYCLE = np.roll(np.eye(V), 1, axis=1)
MASK = np.array([1, 0, 1, 1, 0, 1], bool)


def random_tables(size=V, seed=0):
  """Distributions of target and drafter, no token being rare."""
  rng = np.random.default_rng(seed)
  return [(exactness.random_table(rng, size) + 1 / size) / 2 for _ in range(2)]


def run(method, models, first=0, rows=ROWS, new=NEW, temperature=1.0, top_p=1.0,
        allowed=None, **kwargs):
  """Texts after the token `first`, whose contract is checked on the way."""
  size = models.target.lm.vocab_size
  prompts = np.broadcast_to(np.int32(first), (rows,))[:, None]
  sampling = dj.Sampling(
      temperature=temperature, top_p=np.broadcast_to(top_p, (rows,)),
      token_mask=np.ones(size, bool) if allowed is None else allowed)
  return tiny.generate(method, models, prompts=prompts,
                       lengths=np.ones(rows, np.int32), new=new,
                       sampling=sampling, **kwargs)


def transitions(out):
  """All pairs of a token and the one after it."""
  tokens = np.asarray(out.tokens)
  before, after = tokens[:, :-1].ravel(), tokens[:, 1:].ravel()
  return before[after >= 0], after[after >= 0]


@pytest.mark.cases(15)
@EACH
@pytest.mark.parametrize("top_p", [0.3, 1e-6])
def test_a_nucleus_smaller_than_the_siblings(method, top_p):
  target, draft = random_tables()
  out = run(method, tiny.tables(target, draft), top_p=top_p)
  kept = helpers.warped(target, top_p=top_p) > 0
  assert kept.sum(axis=1).max() <= 2
  before, after = transitions(out)
  assert kept[before, after].all()


@EACH_DRAFTING
def test_disjoint_supports(method):
  target = np.tile([0, 0, 0.4, 0.2, 0.2, 0.2], (V, 1))
  draft = np.tile([0.5, 0.5, 0, 0, 0, 0], (V, 1))
  out = run(method, tiny.tables(target, draft))
  assert out.stats.accepted_by_depth.tolist() == [
      [NEW] + [0] * depth(method)] * ROWS
  assert np.asarray(out.tokens)[:, 1:].min() >= 2
  assert len(np.unique(out.tokens)) == 5


@EACH_GREEDY
def test_disjoint_supports_at_temperature_0(method):
  target = np.tile([0, 0, 0.4, 0.2, 0.2, 0.2], (V, 1))
  draft = np.tile([0.5, 0.5, 0, 0, 0, 0], (V, 1))
  out = run(method, tiny.tables(target, draft), temperature=0)
  assert (np.asarray(out.tokens)[:, 1:] == 2).all()
  assert np.asarray(out.stats.target_calls).tolist() == [NEW] * ROWS


@EACH
def test_certain_models(method):
  out = run(method, tiny.tables(CYCLE, CYCLE))
  assert (np.asarray(out.tokens) == np.arange(1 + NEW) % V).all()
  np.testing.assert_array_equal(out.log_probs, 0)
  by_depth = np.asarray(out.stats.accepted_by_depth)
  assert not whole_trees(method) or (by_depth[:, :-1] == 0).all()


@EACH
def test_a_token_mask(method):
  target, draft = random_tables()
  out = run(method, tiny.tables(target, draft), allowed=MASK)
  assert set(np.asarray(out.tokens)[:, 1:].ravel()) == {0, 2, 3, 5}


@EACH_GREEDY
def test_a_token_mask_at_temperature_0(method):
  target, draft = random_tables()
  out = run(method, tiny.tables(target, draft), allowed=MASK, temperature=0)
  text = [0]
  for _ in range(NEW):
    text.append(int(np.argmax(np.where(MASK, target[text[-1]], 0))))
  assert np.asarray(out.tokens).tolist() == [text] * ROWS


def script(first, places, eos_id=None):
  """What follows `first` on the cycle, up to the first end."""
  tokens = [(first + 1 + i) % V for i in range(places)]
  return tokens[:tokens.index(eos_id) + 1] if eos_id in tokens else tokens


@EACH
def test_the_end_of_a_text(method):
  """First, middle and last accepted token, the extra token, the next call."""
  first, eos_id = np.arange(ROWS) % V, 2
  out = run(method, tiny.tables(CYCLE, CYCLE), first, eos_id=eos_id)
  expected = [script(x, NEW, eos_id) for x in first]
  assert tiny.texts(out, np.ones(ROWS, int)) == expected
  assert {len(text) for text in expected} == {1, 2, 3, 4, 5, 6}
  if not whole_trees(method):
    return
  calls = [-(-len(text) // (depth(method) + 1)) for text in expected]
  assert np.asarray(out.stats.target_calls).tolist() == calls
  # What a call accepts counts in full, where its text is cut as well.
  assert np.asarray(out.stats.accepted_by_depth)[:, -1].tolist() == calls


@EACH_DRAFTING
def test_an_end_in_place_of_a_mistake(method):
  """The drafter takes 2 to be followed by 0; the target ends the text."""
  draft = CYCLE.copy()
  draft[2] = np.eye(V)[0]
  out = run(method, tiny.tables(CYCLE, draft), 1, eos_id=3)
  assert tiny.texts(out, np.ones(ROWS, int)) == [[2, 3]] * ROWS
  counts = [0, 1] + [0] * (depth(method) - 1)
  assert not whole_trees(method) or (
      out.stats.accepted_by_depth.tolist() == [counts] * ROWS)


def test_a_budget_of_one_token():
  """The whole path is accepted, and all but its first token cut off."""
  out = run(dj.methods.rsd_s(3, 2), tiny.tables(CYCLE, CYCLE), new=1)
  assert tiny.texts(out, np.ones(ROWS, int)) == [[1]] * ROWS
  assert out.stats.accepted_by_depth.tolist() == [[0, 0, 1]] * ROWS
  assert np.asarray(out.stats.emitted).tolist() == [1] * ROWS


def test_two_siblings_of_two_tokens():
  out = run(dj.methods.rsd_c((2, 2)), tiny.tables(*random_tables(2)))
  assert (np.asarray(out.stats.accepted_by_depth)[:, :-1] == 0).all()
  assert np.asarray(out.stats.extra["accepted_by_rank"])[:, 1].sum() > 0


def test_as_many_siblings_as_tokens():
  out = run(dj.methods.rsd_s(V, 2), tiny.tables(*random_tables()))
  assert (np.asarray(out.stats.accepted_by_depth)[:, 0] == 0).all()
  tested = np.asarray(out.stats.extra["tested_by_rank"]).sum(axis=0)
  assert tested[V - 2] > 0


def test_drafts_at_temperature_0_of_a_warm_target():
  target, draft = random_tables()
  out = run(dj.methods.rsd_c((2, 2)), tiny.tables(target, draft),
            draft_sampling=dj.Sampling(temperature=0))
  # The second sibling has no mass, and is never tested.
  extra = jax.tree.map(np.asarray, out.stats.extra)
  assert extra["tested_by_rank"][:, 0].min() > 0
  assert not extra["tested_by_rank"][:, 1].any()


def test_distributions_of_one_token_in_some_rows():
  target, draft = random_tables()
  top_p = np.where(np.arange(ROWS) % 2, 1.0, 1e-6)
  out = run(dj.methods.rsd_s(3, 2), tiny.tables(target, draft), top_p=top_p)
  tokens = np.asarray(out.tokens)
  text = [0]
  for _ in range(NEW):
    text.append(int(np.argmax(target[text[-1]])))
  assert tokens[::2].tolist() == [text] * (ROWS // 2)
  assert len(np.unique(tokens[1::2], axis=0)) > 2
