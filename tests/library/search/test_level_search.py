"""Beams and samples of whole texts, against enumeration and brute force."""

import itertools

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.search import texts as texts_lib
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny
from support.search_reference import (V, beams, draw, grown, grown_by_length,
                                      ordered_counts, ROWS, search, table,
                                      texts)


@pytest.mark.cases(2)
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("seed", [0, 1])
def test_beam_search_equals_brute_force(width, seed):
  distributions = table(seed)
  out = search(dj.methods.beam_search(width), distributions)
  for row in range(3):
    expected = grown(distributions, row, width)
    assert beams(out, row) == [text for _, text in expected]
    np.testing.assert_allclose(out.stats.extra["beam_log_probs"][row],
                               [total for total, _ in expected], atol=1e-5)
    length = out.lengths[row] - 1
    assert tuple(out.tokens[row, 1:1 + length]) == expected[0][1]


def test_control_a_beam_that_is_too_narrow_misses_the_best_text():
  missed = 0
  for seed in range(8):
    distributions = table(seed)
    best = [max((p, text) for text, p in texts(distributions, row).items())[1]
            for row in range(3)]
    narrow = search(dj.methods.beam_search(1), distributions)
    wide = search(dj.methods.beam_search(4), distributions)
    missed += sum(beams(narrow, row)[0] != best[row] for row in range(3))
    assert sum(beams(wide, row)[0] == best[row] for row in range(3)) >= 2
  assert missed


def test_one_beam_is_greedy_decoding():
  distributions = table(3)
  one = search(dj.methods.beam_search(1), distributions,
               sampling=dj.Sampling(temperature=0.0))
  greedy = search(dj.methods.autoregressive(), distributions,
                  sampling=dj.Sampling(temperature=0.0))
  np.testing.assert_array_equal(one.tokens, greedy.tokens)
  np.testing.assert_allclose(one.log_probs, greedy.log_probs, atol=1e-6)
  assert (one.stats.target_calls == greedy.stats.target_calls).all()


def test_temperature_0_searches_the_distribution_of_the_model():
  distributions, mask = table(4), np.array([1, 1, 0, 1], bool)
  method = dj.methods.beam_search(3)
  plain = search(method, distributions, sampling=dj.Sampling(token_mask=mask))
  greedy = search(method, distributions,
                  sampling=dj.Sampling(0.0, token_mask=mask))
  np.testing.assert_array_equal(plain.stats.extra["beams"],
                                greedy.stats.extra["beams"])
  for row in range(3):
    expected = grown(helpers.warped(distributions, token_mask=mask), row, 3)
    assert beams(greedy, row) == [text for _, text in expected]


def test_a_distribution_of_few_texts_leaves_beams_without_mass():
  distributions = np.roll(np.eye(V), 1, axis=1)
  out = search(dj.methods.beam_search(3), distributions)
  assert beams(out, 0)[0] == (1, 2) and beams(out, 1)[0] == (2,)
  log_probs = out.stats.extra["beam_log_probs"]
  assert (log_probs[:, 0] == 0).all() and (log_probs[:, 1:] == -np.inf).all()
  assert not np.isnan(out.stats.extra["beam_scores"]).any()
  assert out.stats.target_calls[:2].tolist() == [2, 1]


@pytest.mark.parametrize("penalty, shorter", [(0.0, True), (1.0, False)])
def test_length_penalty(penalty, shorter):
  """EOS at once has .4, and the best longer text .3 at two tokens."""
  distributions = np.array([[0, .6, .4], [.5, 0, .5], [1, 0, 0]])
  out = search(dj.methods.beam_search(2, length_penalty=penalty),
               distributions, rows=1, length=2)
  assert (out.lengths[0] == 2) == shorter


@pytest.mark.parametrize("width", [2, 3])
def test_ended_texts_push_no_longer_ones_out(width):
  """As in transformers; and not if they are beams, where some are worse."""
  penalty, length, lost = 2.0, 6, 0
  method = dj.methods.beam_search(width, length_penalty=penalty)
  for seed in range(4):
    distributions = table(seed)
    out = search(method, distributions, length=length)
    for row in range(3):
      expected = grown_by_length(distributions, row, width, penalty, length)
      # Texts of the same transitions are equally probable.
      assert [len(x) for x in beams(out, row)] == [len(x) for _, x in expected]
      np.testing.assert_allclose(out.stats.extra["beam_log_probs"][row],
                                 [total for total, _ in expected], atol=1e-5)
      lost += expected[0][0] not in [
          total for total, _ in grown(distributions, row, width, length)]
  assert lost


@pytest.mark.cases(1)
@pytest.mark.parametrize("sampling", [
    dj.Sampling(), dj.Sampling(temperature=0.6, top_p=0.9)], ids=str)
def test_stochastic_beams_are_drawn_without_replacement(sampling):
  """By enumeration of ordered samples of two texts."""
  distributions, width = table(5, zeros=1), 2
  warped = helpers.warped(distributions, float(sampling.temperature),
                          top_p=float(sampling.top_p))
  probs = texts(warped, 0)
  out = draw(dj.methods.stochastic_beam_search(width), distributions, sampling)
  counts = ordered_counts(out, list(probs), width)
  expected = np.zeros_like(counts)
  for (i, p), (j, q) in itertools.permutations(enumerate(probs.values()), 2):
    expected[i, j] = p * q / (1 - p)
  assert exactness.p_value(counts, expected) > exactness.MIN_P_VALUE
  # The first one alone is a sample, and so is what is emitted.
  firsts = counts.sum(axis=1)
  assert exactness.p_value(firsts, np.array(list(probs.values()))) > (
      exactness.MIN_P_VALUE)
  # Negative control: independent samples have other second texts.
  independent = np.outer(*[list(probs.values())] * 2)
  assert exactness.p_value(counts, independent) < helpers.MAX_P_VALUE_OF_CONTROL
  log_probs = np.array([[np.log(probs[text]) for text in beams(out, row)]
                        for row in range(20)])
  np.testing.assert_allclose(out.stats.extra["beam_log_probs"][:20], log_probs,
                             atol=1e-4)


def test_perturbed_scores_descend():
  out = search(dj.methods.stochastic_beam_search(3), table(6))
  scores = out.stats.extra["beam_scores"]
  assert (np.diff(scores, axis=1) < 0).all()
  assert (scores != out.stats.extra["beam_log_probs"]).all()


@pytest.mark.cases(1)
@pytest.mark.parametrize("groups, diversity", [(2, 0.7), (4, 2.0), (2, 0.0)])
def test_diverse_beams_equal_brute_force(groups, diversity):
  distributions = table(7)
  out = search(dj.methods.diverse_beam_search(4, groups, diversity),
               distributions)
  for row in range(3):
    expected = grown(distributions, row, 4, penalty=diversity, groups=groups)
    assert sorted(beams(out, row)) == sorted(text for _, text in expected)
    np.testing.assert_allclose(out.stats.extra["beam_log_probs"][row],
                               [total for total, _ in expected], atol=1e-5)


def test_diversity_makes_beams_differ():
  distributions = table(7)
  alike = search(dj.methods.diverse_beam_search(4, 4, 0.0), distributions)
  apart = search(dj.methods.diverse_beam_search(4, 4, 5.0), distributions)
  assert len(set(beams(alike, 0))) == 1 < len(set(beams(apart, 0)))


def test_best_of_n_draws_samples_of_the_distribution():
  """Two samples are independent, and the better one is the text."""
  distributions = table(8)
  probs = texts(distributions, 0)
  values = np.random.default_rng(0).normal(size=tiny.STATES).astype(np.float32)
  out = draw(dj.methods.best_of_n(2), distributions, dj.Sampling(),
             reward=tiny.table_reward(), reward_params=1.0,
             constraints=np.tile(values, (ROWS, 1)))
  known = list(probs)
  rewards = {text: tiny.table_value(values, (0, *text)) for text in known}
  counts = ordered_counts(out, known, 2)
  expected = np.zeros_like(counts)
  for (i, a), (j, b) in itertools.product(enumerate(known), repeat=2):
    better = (rewards[a], probs[a]) >= (rewards[b], probs[b])
    first, second = (i, j) if better else (j, i)
    expected[first, second] += probs[a] * probs[b]
  assert exactness.p_value(counts, expected) > exactness.MIN_P_VALUE
  # Negative control: the order in which they were drawn.
  product = np.outer(list(probs.values()), list(probs.values()))
  assert exactness.p_value(counts, product) < helpers.MAX_P_VALUE_OF_CONTROL
  assert (out.stats.extra["reward_calls"] == 2).all()
  np.testing.assert_allclose(
      out.stats.extra["reward"][:50],
      [rewards[beams(out, row)[0]] for row in range(50)], rtol=1e-6)


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", [
    dj.methods.beam_search(3), dj.methods.stochastic_beam_search(3),
    dj.methods.diverse_beam_search(4, 2)])
def test_beams_of_a_transformer(method):
  """Each beam has the log-probability of a plain forward over its text."""
  out = jax.tree.map(np.asarray, tiny.generate(method, tiny.llama_models(),
                                               eos_id=3))
  model = tiny.llama_models().target
  rows, width, new = out.stats.extra["beams"].shape
  size = tiny.PROMPTS.shape[1] + new
  tokens = np.zeros((rows, width, size), np.int32)
  for row, (prompt, start) in enumerate(zip(tiny.PROMPTS, tiny.LENGTHS)):
    tokens[row, :, :start] = prompt[:start]
    for beam, text in enumerate(beams(out, row)):
      tokens[row, beam, start:start + len(text)] = text
  flat = tokens.reshape(-1, size)
  each = np.take_along_axis(tiny.log_probs(model, flat)[:, :-1],
                            flat[:, 1:, None], 2).reshape(rows, width, size - 1)
  for row, start in enumerate(tiny.LENGTHS):
    for beam, text in enumerate(beams(out, row)):
      total = each[row, beam, start - 1:start - 1 + len(text)].sum()
      np.testing.assert_allclose(
          out.stats.extra["beam_log_probs"][row, beam], total, atol=1e-4)
    ends = out.lengths[row]
    np.testing.assert_allclose(out.log_probs[row, start:ends],
                               each[row, 0, start - 1:ends - 1], atol=1e-4)


@pytest.mark.long
def test_a_budget_of_one_token():
  """No beam needs a forward: the first one ends with the likeliest token."""
  models = tiny.llama_models()
  out = tiny.generate(dj.methods.beam_search(3), models, eos_id=3, new=1,
                      sampling=dj.Sampling(0.0))
  assert tiny.texts(out, tiny.LENGTHS) == tiny.greedy(
      models.target, tiny.PROMPTS, tiny.LENGTHS, 1)
  assert out.stats.target_calls.tolist() == [1, 1, 1]


REORDERING = [dj.methods.segment_search(2, 2, 3),
              dj.methods.particles(4, 2.0, resample_below=1.0)]


def reordered(method, new):
  """Returns the text's log-probabilities, and those of a forward over it."""
  target = tiny.random_model(tiny.LLAMA)
  tolls = np.random.default_rng(0).random((3, tiny.STATES), np.float32)
  out = tiny.generate(
      method, tiny.Models(target, None), new=new, reward=tiny.toll_reward(),
      reward_params=None, constraints=tolls)
  assert np.all(out.stats.extra.get("resampled", 1)), "no text was reordered"
  log_probs = tiny.log_probs(target, out.tokens)
  actual, expected = zip(*(
      (out.log_probs[row, start:start + new],
       log_probs[row, np.arange(start - 1, start + new - 1),
                 out.tokens[row, start:start + new]])
      for row, start in enumerate(tiny.LENGTHS)))
  return np.asarray(actual), np.asarray(expected)


@pytest.mark.parametrize("method", REORDERING, ids=lambda x: x.name)
def test_reordered_texts_attend_to_their_own_tokens(method):
  np.testing.assert_allclose(*reordered(method, 9), atol=1e-4)


@pytest.mark.parametrize("method", REORDERING, ids=lambda x: x.name)
def test_control_slots_of_the_order_before(method, monkeypatch):
  monkeypatch.setattr(texts_lib, "reseat", lambda texts, slot: texts)
  actual, expected = reordered(method, 10)  # Another program.
  assert np.abs(actual - expected).max() > 0.1
