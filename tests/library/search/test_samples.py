"""Votes, first finish search and segment search against enumeration."""

import collections
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.search import texts as texts_lib, votes
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny
from support.search_reference import (beams, draw, EOS, fit, LENGTH, ROWS,
                                      search, table, texts)

SMALL = 3
VALUES = np.random.default_rng(0).normal(size=tiny.STATES).astype(np.float32)


def answer(text, marker):
  """What votes: all after the last marker; None of a text without it."""
  if marker is None:
    return text
  if marker not in text:
    return None
  return text[len(text) - text[::-1].index(marker):] or None


def votes_of(result, voters, marker):
  """Votes for each text in plain Python; -1 for those that do not vote."""
  answers = [answer(text, marker) for text in result]
  counts = collections.Counter(a for a, votes in zip(answers, voters)
                               if votes and a is not None)
  return [counts[a] if votes else -1 for a, votes in zip(answers, voters)]


@pytest.mark.parametrize("marker", [None, 1])
def test_votes_equal_plain_python(marker):
  rng = np.random.default_rng(0)
  rows = [[tuple(rng.integers(0, 2, rng.integers(1, 4))) for _ in range(5)]
          for _ in range(20)]
  voters = rng.random((20, 5)) < .8
  tokens = np.full((20, 5, 6), -1, np.int32)
  for b, w in np.ndindex(20, 5):
    tokens[b, w, :len(rows[b][w])] = rows[b][w]
  actual = texts_lib.Texts(tokens=jnp.asarray(tokens), log_probs=None,
                           lengths=(tokens >= 0).sum(-1), mask=None, alive=None)
  expected = [votes_of(*row, marker) for row in zip(rows, voters)]
  np.testing.assert_array_equal(votes.count(actual, voters, marker), expected)
  assert {-1, 1, 2} <= set(sum(expected, []))


@pytest.mark.parametrize("method, marker", [
    (dj.methods.samples(5), None), (dj.methods.samples(5, answer_after=1), 1)])
def test_the_majority_is_the_text(method, marker):
  out = draw(method, table(1), dj.Sampling(), rows=300)
  for row in range(300):
    result = beams(out, row)
    counts = votes_of(result, [True] * 5, marker)
    assert counts[0] == max(counts)
    assert tuple(out.tokens[row, 1:out.lengths[row]]) == result[0]


def shorter(a, b, probs):
  """Of two samples the one that ends first; neither may have ended."""
  key = lambda text: (text[-1] != EOS, len(text) if text[-1] == EOS else 0,
                      -probs[text])
  return min(a, b, key=key)


def test_first_finish_equals_enumeration():
  """Control: a sample alone has another distribution."""
  distributions = table(2)
  probs = texts(distributions, 0)
  expected = collections.Counter()
  for (a, p), (b, q) in itertools.product(probs.items(), repeat=2):
    expected[shorter(a, b, probs)] += p * q
  out = draw(dj.methods.first_finish(2), distributions, dj.Sampling())
  assert fit(out, expected) > exactness.MIN_P_VALUE
  assert fit(out, probs) < helpers.MAX_P_VALUE_OF_CONTROL
  # The row ends with its first text: no more levels than tokens of it.
  np.testing.assert_array_equal(out.stats.target_calls, out.lengths - 1)


def test_the_first_k_vote():
  method = dj.methods.first_finish(6, num_finished=3, answer_after=1)
  out = draw(method, table(3), dj.Sampling(), rows=300)
  log_probs = out.stats.extra["beam_log_probs"]
  partly = 0
  for row in range(300):
    result = beams(out, row)
    done = sorted((len(text), -log_probs[row, i], i)
                  for i, text in enumerate(result) if text[-1] == EOS)[:3]
    chosen = {i for _, _, i in done} or set(range(6))
    counts = votes_of(result, [i in chosen for i in range(6)], 1)
    assert counts[0] == max(counts)
    # Nothing goes on when three have ended.
    lengths = sorted(len(text) for text in result if text[-1] == EOS)
    limit = lengths[2] if len(lengths) > 2 else LENGTH
    assert max(map(len, result)) == min(limit, max(map(len, result)))
    assert out.stats.target_calls[row] == max(map(len, result))
    partly += limit < LENGTH
  assert 30 < partly < 300


def ordered(result):
  """Distinct outcomes of independent draws: a dict from tuples of texts."""
  merged = collections.Counter()
  for outcome in itertools.product(*(options.items() for options in result)):
    merged[tuple(text for text, _ in outcome)] += np.prod(
        [p for _, p in outcome])
  return merged


def segment_distribution(distributions, num_beams, num_samples, length):
  """Of the result of segments of one token: all draws are enumerated."""
  worth = lambda text: tiny.table_value(VALUES, (0, *text))
  total = {text: p for size in range(1, length + 1)
           for text, p in texts(distributions, 0, size).items()}
  states = {((),): 1.0}
  for level in range(length):
    following = collections.Counter()
    for kept, p in states.items():
      options = []
      for text in kept:
        copies = num_samples * (num_beams if len(kept) == 1 and not text else 1)
        if text and text[-1] == EOS:
          options.append({text: 1.0})
          continue
        probs = distributions[text[-1] if text else 0]
        options += [{(*text, int(x)): probs[x] for x in np.flatnonzero(probs)}
                    ] * copies
      for drawn, q in ordered(options).items():
        best = sorted(drawn, key=lambda text: -worth(text))
        following[tuple(best[:num_beams])] += p * q
    states = following
  result = collections.Counter()
  for kept, p in states.items():
    # Of equal rewards, which only equal texts have here, any is the same.
    result[max(kept, key=lambda text: (worth(text), total[text]))] += p
  return result


@pytest.mark.cases(1)
@pytest.mark.parametrize("num_beams, num_samples", [(2, 2), (1, 2)])
def test_segment_search_equals_enumeration(num_beams, num_samples):
  """Control: the best of as many samples has another distribution."""
  distributions, length = table(4, size=SMALL), 3
  probs = texts(distributions, 0, length)
  options = dict(reward=tiny.table_reward(), reward_params=1.0, length=length,
                 constraints=np.tile(VALUES, (ROWS, 1)))
  out = draw(dj.methods.segment_search(num_beams, num_samples, 1),
             distributions, dj.Sampling(), **options)
  expected = segment_distribution(distributions, num_beams, num_samples, length)
  assert fit(out, expected) > exactness.MIN_P_VALUE
  best = collections.Counter()
  for drawn, p in ordered([probs] * num_beams * num_samples).items():
    best[max(drawn, key=lambda text: tiny.table_value(VALUES, (0, *text)))] += p
  assert fit(out, best) < helpers.MAX_P_VALUE_OF_CONTROL


def test_one_long_segment_is_best_of_n():
  values = np.random.default_rng(1).normal(size=(3, tiny.STATES))
  options = dict(reward=tiny.table_reward(), reward_params=1.0,
                 constraints=values.astype(np.float32))
  segment = search(dj.methods.segment_search(1, 4, LENGTH), table(5), **options)
  best = search(dj.methods.best_of_n(4), table(5), **options)
  np.testing.assert_array_equal(segment.tokens, best.tokens)


METHODS = [dj.methods.first_finish(3, 2), dj.methods.segment_search(2, 2, 3),
           dj.methods.particles(4), dj.methods.awrs(3, -1.0),
           dj.methods.beam_search(3), dj.methods.stochastic_beam_search(3),
           dj.methods.diverse_beam_search(4, 2), dj.methods.at_speed(2, 4, 3),
           dj.methods.gsi(2, 3, 1.0, 0.3, end=6)]


@pytest.mark.cases(3)
@pytest.mark.parametrize("method", METHODS)
def test_a_row_does_not_depend_on_others(method):
  """In another batch, and in a queue; all share what a queue replaces."""
  keys = jax.random.split(jax.random.key(5), len(tiny.PROMPTS))
  values = np.random.default_rng(2).normal(size=(3, tiny.STATES)).astype(
      np.float32)

  def run(shift=0, **kwargs):
    # The same shapes, so that nothing is compiled anew.
    roll = lambda x: np.roll(x, -shift, axis=0)
    return tiny.generate(
        method, tiny.llama_models(), key=jnp.roll(keys, -shift),
        eos_id=3, prompts=roll(tiny.PROMPTS), lengths=roll(tiny.LENGTHS),
        reward=tiny.table_reward(), reward_params=1.0,
        constraints=roll(values), **kwargs)

  together = run()
  if method.name.startswith(("particles", "at_speed")):
    queued = run(rows=2)
    np.testing.assert_array_equal(together.tokens, queued.tokens)
    np.testing.assert_array_equal(together.stats.target_calls,
                                  queued.stats.target_calls)
  for row in range(1, 3):
    rolled = run(row)
    np.testing.assert_array_equal(together.tokens[row], rolled.tokens[0])
    jax.tree.map(lambda x, y, row=row: np.testing.assert_allclose(
        x[row], y[0], rtol=1e-4), together.stats, rolled.stats)
