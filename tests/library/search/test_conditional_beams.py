"""Conditional beam search, and beams ranked by a reward, in plain Python."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from support import tiny_models as tiny
from support.search_reference import (beams, EOS, grown, LENGTH, search, table,
                                      texts, V)

VALUES = np.random.default_rng(0).normal(size=(3, tiny.STATES)).astype(
    np.float32)


def worth(row, text):
  return tiny.table_value(VALUES[row], (row, *text))


def rewarded(method, distributions):
  return search(method, distributions, reward=tiny.table_reward(),
                reward_params=1.0, constraints=VALUES)


def conditional(distributions, row, num_beams, num_candidates, weight):
  """Beams as (score, text), best first; and classified texts."""
  results, calls = [(0.0, 0.0, ())], 0
  for _ in range(LENGTH):
    options = []
    for score, total, text in results:
      if text and text[-1] == EOS:
        options.append((score, total, text))
        continue
      probs = distributions[text[-1] if text else row]
      calls += num_candidates
      for x in np.argsort(-probs)[:num_candidates]:
        if probs[x]:
          longer = (*text, int(x))
          log_prob = total + np.log(probs[x])
          options.append((log_prob + weight * worth(row, longer), log_prob,
                          longer))
    results = sorted(options, reverse=True)[:num_beams]
  return [(score, text) for score, _, text in results], calls


@pytest.mark.parametrize("num_beams, num_candidates, weight", [
    (2, 3, 1.0), (4, 2, 0.5), (3, 4, 0.0)])
def test_conditional_beams_equal_plain_python(num_beams, num_candidates,
                                              weight):
  distributions = table(1, zeros=1)
  out = rewarded(dj.methods.conditional_beam_search(
      num_beams, num_candidates, weight), distributions)
  for row in range(3):
    expected, calls = conditional(distributions, row, num_beams,
                                  num_candidates, weight)
    assert beams(out, row)[:len(expected)] == [text for _, text in expected]
    np.testing.assert_allclose(
        out.stats.extra["beam_scores"][row, :len(expected)],
        [score for score, _ in expected], atol=1e-5)
    assert out.stats.extra["reward_calls"][row] == calls


def test_logits_are_those_of_the_attribute():
  """As a reward of log p(a | x) is; control: the logits themselves."""
  distributions = table(1)
  find = lambda reward, **options: search(
      dj.methods.conditional_beam_search(3, 2, **options), distributions,
      reward=reward, reward_params=1.0, constraints=VALUES)
  logits = tiny.table_reward()
  log_probs = logits._replace(value=lambda *state: jax.nn.log_sigmoid(
      logits.value(*state)))
  actual, expected, wrong = (
      out.stats.extra["beam_scores"] for out in (
          find(logits, logits=True), find(log_probs), find(logits)))
  np.testing.assert_allclose(actual, expected, atol=1e-6)
  assert np.abs(wrong - expected).max() > 0.1


def test_no_weight_is_beam_search():
  distributions = table(2)
  out = rewarded(dj.methods.conditional_beam_search(3, V, 0.0), distributions)
  for row in range(3):
    assert beams(out, row) == [text for _, text in grown(distributions, row, 3)]


@functools.lru_cache(maxsize=None)
def attribute(distributions, row):
  """p(a | x) of each text and prefix, a random attribute of whole texts."""
  table_ = np.array(distributions)
  whole = texts(table_, row)
  rng = np.random.default_rng(row)
  has = {text: rng.random() for text in whole}
  mass, joint = collections.Counter(), collections.Counter()
  for text, p in whole.items():
    for size in range(len(text) + 1):
      mass[text[:size]] += p
      joint[text[:size]] += p * has[text]
  return {text: joint[text] / mass[text] for text in mass}


def classifier():
  """A reward: log p(a | text), from a table by the number of the text."""
  return dj.Reward(
      init=lambda params, constraint, prompt, length: jnp.int32(0),
      advance=lambda params, constraint, state, tokens, valid: jax.lax.scan(
          lambda s, x: (jnp.where(x[1], (V + 1) * s + x[0] + 1, s), None),
          state, (tokens, valid))[0],
      value=lambda params, constraint, state: constraint[state])


def number(text):
  state = 0
  for token in text:
    state = (V + 1) * state + token + 1
  return state


def test_all_beams_find_the_conditional_mode():
  """Controls: few beams miss it, and so do beams without the classifier."""
  distributions = table(3)
  frozen = tuple(map(tuple, distributions))
  values = np.full((3, (V + 1)**LENGTH), -np.inf, np.float32)
  for row in range(3):
    for text, p in attribute(frozen, row).items():
      values[row, number(text)] = np.log(p)
  run = functools.partial(search, distributions=distributions,
                          reward=classifier(), constraints=values)
  wide = run(dj.methods.conditional_beam_search(V**LENGTH, V))
  narrow = run(dj.methods.conditional_beam_search(1, V))
  missed = 0
  for row in range(3):
    scores = {text: p * attribute(frozen, row)[text]
              for text, p in texts(distributions, row).items()}
    mode = max(scores, key=scores.get)
    assert beams(wide, row)[0] == mode
    np.testing.assert_allclose(wide.stats.extra["beam_scores"][row, 0],
                               np.log(scores[mode]), atol=1e-5)
    missed += beams(narrow, row)[0] != mode
    missed += mode != max(texts(distributions, row).items(),
                          key=lambda x: x[1])[0]
  assert missed


def test_beams_are_ranked_by_the_reward():
  distributions = table(4)
  out = rewarded(dj.methods.beam_search(4, rank="reward"), distributions)
  differs = 0
  for row in range(3):
    expected = [text for _, text in grown(distributions, row, 4)]
    best = max(expected, key=lambda text, row=row: worth(row, text))
    assert tuple(out.tokens[row, 1:out.lengths[row]]) == best
    assert sorted(beams(out, row)) == sorted(expected)
    differs += best != expected[0]
  assert differs and (out.stats.extra["reward_calls"] == 4).all()
