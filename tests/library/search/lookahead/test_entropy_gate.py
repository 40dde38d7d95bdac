"""AdaDec against plain Python, and the fit of its threshold."""

import itertools

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.search.lookahead import entropy_gate
from library.search.lookahead import test_cdlh as cdlh
from support import lookahead_reference as reference, tiny_models as tiny


K, STEPS, THRESHOLD = 3, 3, 1.0


def tables(seed=65):
  """Distributions some of which are sharp; a seed whose texts tell them."""
  rng = np.random.default_rng(seed)
  table = np.stack([rng.dirichlet(np.full(cdlh.V, alpha))
                    for alpha in np.linspace(0.2, 2, cdlh.V)])
  return tiny.tables(table + 1e-6)


def rows(eos=cdlh.EOS):
  return cdlh.rows_of_tables(eos=eos, models=tables())


def entropy_of(logits):
  log_probs = reference.log_softmax(logits)
  probs = np.exp(log_probs)
  return -(probs[probs > 0] @ log_probs[probs > 0])


def adadec(row, k, steps, threshold):
  """The text, and how many tokens were looked ahead for."""
  text, lookaheads = list(row.prompt), 0
  while not reference.ended(row, text):
    logits = row.target(text)
    token = int(np.argmax(logits))
    if entropy_of(logits) >= threshold:
      lookaheads += 1
      token = looked_ahead(row, k, steps, text, logits)
    text.append(token)
  return text[len(row.prompt):], lookaheads


def looked_ahead(row, k, steps, text, logits):
  scores = []
  for token in sorted(range(len(logits)), key=lambda x: (-logits[x], x))[:k]:
    path = reference.follow(row, row.target, text + [token], steps)
    scores.append((np.mean([
        reference.log_softmax(row.target(path[:i]))[path[i]]
        for i in range(len(text), len(path))]), token))
  best = max(score for score, _ in scores)
  return next(token for score, token in scores if score == best)


@pytest.mark.parametrize("eos", [cdlh.EOS, None])
def test_adadec_equals_plain_python(eos):
  out = cdlh.run(dj.methods.adadec(K, STEPS, THRESHOLD), models=tables(),
                 eos_id=eos)
  expected = [adadec(row, K, STEPS, THRESHOLD) for row in rows(eos)]
  assert tiny.texts(out, cdlh.LENGTHS) == [text for text, _ in expected]
  lookaheads = np.asarray(out.stats.extra["lookaheads"])
  np.testing.assert_array_equal(lookaheads, [n for _, n in expected])
  calls = np.asarray(out.stats.target_calls)
  emitted = np.asarray(out.stats.emitted)
  assert (calls <= 1 + emitted + STEPS * lookaheads).all()
  assert 0 < lookaheads.sum() < emitted.sum()
  # Controls: other thresholds are other texts.
  for other in (0.0, 9.0):
    assert tiny.texts(out, cdlh.LENGTHS) != [
        adadec(row, K, STEPS, other)[0] for row in rows(eos)]


def test_without_uncertainty_it_is_greedy():
  out = cdlh.run(dj.methods.adadec(K, STEPS, 9.0), models=tables())
  assert tiny.texts(out, cdlh.LENGTHS) == [
      cdlh.greedy_text(row) for row in rows()]
  np.testing.assert_array_equal(out.stats.target_calls,
                                1 + np.asarray(out.stats.emitted))


def test_transformers_equal_plain_forwards():
  models, method = tiny.llama_models(), dj.methods.adadec(2, 2, 0.5)
  out = cdlh.transformers(method, models)
  expected = [adadec(row, 2, 2, 0.5)[0]
              for row in cdlh.rows_of_transformers(models)]
  assert tiny.texts(out, tiny.LENGTHS) == expected


def brute_force(entropies, correct):
  """The most tokens that any threshold tells right."""
  cuts = [-1.0, *entropies, 99.0]
  return max(np.sum((entropies < (a + b) / 2) == correct)
             for a, b in itertools.product(cuts, cuts))


def test_fit_tells_as_many_right_as_any_threshold():
  rng = np.random.default_rng(0)
  for size in (1, 2, 5, 8):
    for _ in range(20):
      # Rounded, so that some are equal.
      entropies = rng.exponential(size=size).round(1)
      correct = rng.random(size) < np.exp(-entropies)
      threshold = entropy_gate.fit_threshold(entropies, correct)
      assert np.sum((entropies < threshold) == correct) == brute_force(
          entropies, correct)


def test_fit_of_texts_that_are_all_right_or_wrong():
  """The worked example: 0.2 and 0.5 are right, 1.1 and 1.5 are wrong."""
  fit = entropy_gate.fit_threshold
  assert fit([1.5, 0.2, 1.1, 0.5], [False, True, False, True]) == 0.8
  assert fit([0.2, 1.0], [True, True]) == float("inf")
  assert fit([0.2, 1.0], [False, False]) == 0
  with pytest.raises(ValueError, match="entropies has shape \\(0,\\)"):
    fit([], [])
