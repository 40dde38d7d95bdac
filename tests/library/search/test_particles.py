"""Particles and AWRS: rules, unbiased weights, distributions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.search import awrs, particles
from decoding_jax.testing import exactness
from support import helpers, tiny_models as tiny
from support.search_reference import beams, draw, EOS, fit, table, texts, V

VALUES = np.random.default_rng(1).normal(size=tiny.STATES).astype(np.float32)
# Standard errors; stated in advance, by chance one of 1e6 is larger.
MOST_ERRORS = 5.0
SOME = 20_000


def worth(text):
  return tiny.table_value(VALUES, (0, *text))


def reward(rows=SOME):
  return dict(reward=tiny.table_reward(), reward_params=1.0,
              constraints=np.tile(VALUES, (rows, 1)))


def deviations(actual, expected):
  """How many standard errors means over rows are from what is expected."""
  error = actual.std(axis=0) / np.sqrt(len(actual))
  return np.abs(actual.mean(axis=0) - expected) / np.maximum(error, 1e-12)


def weights_of(out, known):
  """`[B, texts]`, the mean weight of the particles that are each text."""
  index = {text: i for i, text in enumerate(known)}
  values = np.zeros((len(out.tokens), len(known)))
  scores = np.exp(out.stats.extra["beam_scores"].astype(np.float64))
  for row, scores_of_row in enumerate(scores):
    for text, weight in zip(beams(out, row), scores_of_row):
      # A text without weight may have been cut off.
      if weight:
        values[row, index[text]] += weight / len(scores_of_row)
  return values


def test_effective_sample_size():
  weights = np.array([[1, 1, 1, 1], [2, 2, 0, 0], [0, 5, 0, 0], [3, 1, 0, 0],
                      [0, 0, 0, 0]], np.float32)
  with np.errstate(divide="ignore"):
    result = particles.effective_sample_size(jnp.log(weights) + 200)
  np.testing.assert_allclose(result, [4, 2, 1, 1.6, 0], rtol=1e-5)


def test_systematic_resampling_is_unbiased():
  """On a fine grid of uniforms; a text has its share rounded down or up."""
  weights = np.array([0.0, .31, .02, 0.5, 0, .17, 0], np.float32)
  with np.errstate(divide="ignore"):
    log_weights = np.log(weights) - 50
  grid = (np.arange(2**14, dtype=np.float32) + 0.5) / 2**14
  grid = np.append(grid, np.float32(1 - 2**-23))
  parents = jax.vmap(particles.systematic, (0, None))(grid, log_weights)
  counts = (np.asarray(parents)[..., None] == np.arange(7)).sum(axis=1)
  shares = 7 * weights / weights.sum()
  np.testing.assert_allclose(counts.mean(axis=0), shares, atol=1e-3)
  assert (np.abs(counts - shares) < 1).all()


def unbiased(probs, factor, out):
  """The mean weight of each text is p(x) times its factor, and so is Z."""
  expected = np.array([p * factor(text) for text, p in probs.items()])
  normalizer = np.exp(out.stats.extra["log_normalizer"].astype(np.float64))
  rare = np.array(list(probs.values())) * len(normalizer) < 50
  together = lambda x: np.append(x[..., ~rare], x[..., rare].sum(
      axis=-1, keepdims=True), axis=-1)
  actual = np.column_stack([together(weights_of(out, probs)), normalizer])
  return deviations(actual, np.append(together(expected), expected.sum()))


@pytest.mark.parametrize("threshold", [1.0, 0.0])
def test_weights_of_particles_are_unbiased(threshold):
  """With resampling at every level, and with none."""
  distributions = table(0)
  probs = texts(distributions, 0)
  out = draw(dj.methods.particles(3, resample_below=threshold), distributions,
             dj.Sampling(), rows=SOME, **reward())
  factor = lambda text: np.exp(worth(text))
  assert unbiased(probs, factor, out).max() < MOST_ERRORS
  assert (out.stats.extra["resampled"] > 0).mean() == pytest.approx(
      threshold, abs=0.1)
  # Negative control: the weights of another reward.
  assert unbiased(probs, lambda text: 1.0, out).max() > 10


def test_control_resampling_by_other_weights_is_biased(monkeypatch):
  monkeypatch.setattr(particles, "log_mean", lambda x: x.max(axis=-1))
  distributions = table(0)
  method = dj.Method("control", dj.methods.particles.__wrapped__(
      3, resample_below=1.0).sampled, None)
  out = draw(method, distributions, dj.Sampling(), rows=2000, **reward(2000))
  probs = texts(distributions, 0)
  assert unbiased(probs, lambda text: np.exp(worth(text)), out).max() > 10


def test_one_particle_is_a_sample():
  distributions = table(1)
  out = draw(dj.methods.particles(1), distributions, dj.Sampling(), rows=SOME,
             **reward())
  assert fit(out, texts(distributions, 0)) > exactness.MIN_P_VALUE


def test_many_particles_have_the_tilted_distribution():
  """Control: the target's own distribution is another one."""
  distributions, rows = table(1), 3000
  out = draw(dj.methods.particles(64), distributions, dj.Sampling(), rows=rows,
             **reward(rows))
  probs = texts(distributions, 0)
  tilted = {text: p * np.exp(worth(text)) for text, p in probs.items()}
  total = sum(tilted.values())
  assert fit(out, {text: p / total for text, p in tilted.items()}) > (
      exactness.MIN_P_VALUE)
  assert fit(out, probs) < helpers.MAX_P_VALUE_OF_CONTROL


# No token after itself, and after 1 no end: rows are states, the last token.
FOLLOWING = np.array([[-1, 1, 2, 3], [0, -1, -1, 3], [0, 1, -1, 3],
                      [0, 1, 2, -1]])


def allowed(text):
  return all(FOLLOWING[a, b] >= 0 for a, b in zip((0, *text), text))


def bigram_constraint():
  """Reads the prompt, so that its state is the last token from the start."""
  following = jnp.asarray(FOLLOWING)
  return dj.LogitsProcessor(
      init=lambda params: jnp.int32(0),
      advance=lambda params, state, token: token,
      process=lambda params, state, logits: jnp.where(
          following[state] >= 0, params * logits, -jnp.inf),
      reads_prompt=True)


def test_a_constraint_weighs_by_the_mass_it_leaves():
  """Unlike masks alone, which favour texts of few alternatives: the control."""
  distributions = table(2)
  method = dj.methods.particles(3, 0.0, 1.0, bigram_constraint())
  # What else it does to the logits is left out.
  out = draw(method, distributions, dj.Sampling(), rows=SOME,
             draft_params=jnp.float32(2.0))
  probs = texts(distributions, 0)
  assert unbiased(probs, allowed, out).max() < MOST_ERRORS
  masked = np.where(FOLLOWING >= 0, distributions, 0)
  masked = texts(masked / masked.sum(axis=1, keepdims=True), 0)
  assert unbiased(probs, lambda text: masked.get(text, 0) / probs[text] * sum(
      p for text, p in probs.items() if allowed(text)), out).max() > 10


def test_no_text_is_allowed():
  """Weights are 0, and nothing is NaN."""
  method = dj.methods.particles(3, 0.0, 1.0, dj.LogitsProcessor(
      lambda params: jnp.int32(0), lambda params, state, token: state,
      lambda params, state, logits: jnp.full_like(logits, -jnp.inf)))
  out = draw(method, table(2), dj.Sampling(), rows=3)
  assert (out.stats.extra["log_normalizer"] == -np.inf).all()
  assert (out.stats.target_calls == 1).all()
  assert (out.lengths == 2).all() and np.isfinite(out.log_probs).all()


def estimates(probs, passes):
  """AWRS for each order of draws in plain Python: (order, p, token, weight)."""
  support = [x for x in range(len(probs)) if probs[x]]
  for order in itertools.permutations(support):
    p = np.prod([probs[x] / sum(probs[y] for y in order[i:])
                 for i, x in enumerate(order)])
    first = next((i for i, x in enumerate(order) if passes[x]), None)
    if first is None:
      yield order, p, 0, 0.0, len(order)
      continue
    token = order[first]
    again = first + 1 < len(order) and passes[order[first + 1]]
    weight = sum(probs[x] for x in order[first:]) if again else probs[token]
    yield order, p, token, weight, min(first + 2, len(order))


@pytest.mark.parametrize("passes", [[1, 0, 1, 0, 1], [0, 0, 1, 0, 0],
                                    [1] * 5, [0, 0, 0, 0, 1], [0] * 5])
def test_awrs_by_enumeration(passes):
  """Equal to plain Python for each order of draws, and unbiased."""
  passes = np.array(passes, bool)
  probs = exactness.random_probs(np.random.default_rng(3), 5, zeros=1)
  outcomes = list(estimates(probs, passes))
  perturbed = np.full((len(outcomes), 5), -np.inf, np.float32)
  for row, (order, *_) in enumerate(outcomes):
    perturbed[row, list(order)] = -np.arange(len(order))
  with np.errstate(divide="ignore"):
    log_probs = np.tile(np.log(probs), (len(outcomes), 1)).astype(np.float32)
  result = awrs.draw(perturbed, log_probs, lambda x: jnp.asarray(passes)[x],
                     jnp.ones(len(outcomes), bool))
  _, p, tokens, weights, checks = map(np.array, zip(*(
      (0, *rest) for _, *rest in outcomes)))
  np.testing.assert_array_equal(result.tokens, tokens)
  np.testing.assert_array_equal(result.checks, checks)
  np.testing.assert_allclose(jnp.exp(result.log_weights), weights, atol=1e-6)
  mean = np.bincount(tokens, p * weights, minlength=5)
  np.testing.assert_allclose(mean, probs * passes, atol=1e-12)
  # Negative control: to take what is not rejected for what passes.
  if 0 < passes.sum() < 5 and (probs * passes).any():
    wrong = [p * sum(probs[x] for x in order[order.index(token):])
             for order, p, token, weight, _ in outcomes if weight]
    assert abs(sum(wrong) - (probs * passes).sum()) > 1e-3


def test_awrs_weighs_texts_whose_prefixes_pass():
  distributions, threshold = table(4), -0.3
  probs = texts(distributions, 0)
  passes = lambda text: all(worth(text[:i + 1]) >= threshold
                            for i in range(len(text)))
  assert 0.1 < sum(p for text, p in probs.items() if passes(text)) < 0.9
  out = draw(dj.methods.awrs(3, threshold, 1.0), distributions, dj.Sampling(),
             rows=SOME, **reward())
  assert unbiased(probs, passes, out).max() < MOST_ERRORS
  # Fewer tests than tokens of the vocabulary.
  calls, most = out.stats.extra["reward_calls"], 3 * V * out.stats.target_calls
  assert (calls <= most).all() and calls.mean() < 0.8 * most.mean()
  dead = out.stats.extra["log_normalizer"] == -np.inf
  ends = out.tokens[np.arange(SOME), out.lengths - 1] == EOS
  assert ends[~dead].any() and not np.isnan(out.log_probs).any()
