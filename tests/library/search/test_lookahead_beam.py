"""DeAL against plain Python, and against the methods that it contains."""

import numpy as np
import pytest

import decoding_jax as dj
from library.search.lookahead import test_cdlh as cdlh
from support import (
    arena_reference, lookahead_reference as reference, tiny_models as tiny)


def deal(row, beams, k, steps, weight):
  """Returns the text of the best beam."""
  kept = [(0.0, 0.0, list(row.prompt))]
  while not all(reference.ended(row, text) for *_, text in kept):
    values = []
    for _, log_prob, text in kept:
      if reference.ended(row, text):
        values.append((log_prob + weight * row.value(text), log_prob, text))
        continue
      log_probs = reference.log_softmax(row.target(text))
      for token in arena_reference.ranked(log_probs, k):
        path = reference.follow(row, row.target, [*text, token], steps)
        total = log_prob + log_probs[token]
        values.append((total + weight * row.value(path), total, [*text, token]))
    kept = sorted(values, key=lambda x: -x[0])[:beams]
  return kept[0][2][len(row.prompt):]


@pytest.mark.parametrize("sizes", [(3, 2, 2, 1.0), (2, 3, 3, 0.4)], ids=str)
def test_equals_plain_python(sizes):
  for seed in range(3):
    out = cdlh.run(dj.methods.deal(*sizes), seed)
    expected = [deal(row, *sizes) for row in cdlh.rows_of_tables(seed)]
    assert tiny.texts(out, cdlh.LENGTHS) == expected
  assert len({len(text) for text in expected}) > 2
  # Controls: fewer beams, another weight.
  for other in ((1, *sizes[1:]), (*sizes[:3], 0.0)):
    assert expected != [deal(row, *other) for row in cdlh.rows_of_tables(seed)]


def test_transformers_equal_plain_forwards():
  models, method = tiny.llama_models(), dj.methods.deal(2, 2, 2)
  out = cdlh.transformers(method, models)
  assert tiny.texts(out, tiny.LENGTHS) == [
      deal(row, 2, 2, 2, 1.0) for row in cdlh.rows_of_transformers(models)]


def test_with_one_beam_it_is_cdlh():
  actual = cdlh.run(dj.methods.deal(1, 3, 4))
  expected = cdlh.run(dj.methods.cdlh(*cdlh.LOOK))
  np.testing.assert_array_equal(actual.tokens, expected.tokens)
  np.testing.assert_allclose(actual.log_probs, expected.log_probs, atol=1e-5)
  np.testing.assert_array_equal(actual.stats.extra["reward_calls"],
                                expected.stats.extra["reward_calls"])


def test_without_a_reward_it_is_beam_search():
  actual = cdlh.run(dj.methods.deal(3, 3, 1, 0.0))
  expected = cdlh.run(dj.methods.beam_search(3))
  np.testing.assert_array_equal(actual.tokens, expected.tokens)
  np.testing.assert_array_equal(actual.stats.extra["beams"],
                                expected.stats.extra["beams"])


def test_fewer_texts_than_beams():
  out = cdlh.run(dj.methods.deal(5, 2, 2), new=1)
  assert tiny.texts(out, cdlh.LENGTHS) == [
      deal(row, 5, 2, 2, 1.0) for row in cdlh.rows_of_tables(new=1)]
  scores = np.asarray(out.stats.extra["beam_scores"])
  assert np.isfinite(scores).sum(axis=1).tolist() == [2] * cdlh.ROWS
  assert not np.isnan(scores).any()
