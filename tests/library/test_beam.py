"""One level of a beam against brute force and against enumeration."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import beam, sampling
from decoding_jax.testing import exactness
from support import helpers

STEPS = [beam.plain, beam.perturbed]


def random_log_probs(seed, rows, size, zeros=0):
  rng = np.random.default_rng(seed)
  with np.errstate(divide="ignore"):
    return np.log(np.stack([exactness.random_probs(rng, size, zeros)
                            for _ in range(rows)])).astype(np.float32)


@functools.partial(jax.jit, static_argnums=(0, 4))
def run_level(step, key, log_probs, parents, width):
  return step(key, log_probs, parents, width)


def level(step, log_probs, parents, width, seed=0):
  result = run_level(step, jax.random.key(seed), log_probs, parents, width)
  return jax.tree.map(np.asarray, result)


def as_beam(log_probs, scores):
  return beam.Beam(jnp.asarray(log_probs, jnp.float32),
                   jnp.asarray(scores, jnp.float32))


@pytest.mark.parametrize("width", [1, 3, 5])
def test_plain_equals_brute_force(width):
  log_probs, totals = random_log_probs(0, 3, 5), np.array([-0.3, -1.1, -2.0])
  every = sorted(((totals[i] + log_probs[i, x], i, x) for i, x in
                  itertools.product(range(3), range(5))), reverse=True)[:width]
  tokens, parents, result = level(beam.plain, log_probs,
                                  as_beam(totals, totals), width)
  scores, expected_parents, expected_tokens = zip(*every)
  assert parents.tolist() == list(expected_parents)
  assert tokens.tolist() == list(expected_tokens)
  np.testing.assert_allclose(result.scores, scores, atol=1e-6)
  np.testing.assert_array_equal(result.log_probs, result.scores)


def test_a_root_is_certain_and_plain_levels_depend_on_no_key():
  assert beam.root() == beam.Beam(jnp.zeros(1), jnp.zeros(1))
  log_probs = random_log_probs(1, 1, 6)
  first = level(beam.plain, log_probs, beam.root(), 3, seed=0)
  second = level(beam.plain, log_probs, beam.root(), 3, seed=1)
  jax.tree.map(np.testing.assert_array_equal, first, second)


@pytest.mark.parametrize("step", STEPS)
def test_more_nodes_than_support(step):
  log_probs = random_log_probs(2, 1, 4, zeros=2)
  support = set(np.flatnonzero(np.isfinite(log_probs[0])))
  tokens, parents, result = level(step, log_probs, beam.root(), 4)
  assert set(tokens[:2]) == support and not parents.any()
  assert np.isfinite(result.scores).tolist() == [True, True, False, False]
  assert not np.isnan(result.log_probs).any()

  below = random_log_probs(3, 4, 4, zeros=1)
  tokens, parents, result = level(step, below, as_beam(*_leaves(result)), 4)
  assert set(parents) <= {0, 1} and np.isfinite(result.scores).all()
  assert np.isfinite(below[parents, tokens]).all()


@pytest.mark.parametrize("step", STEPS)
def test_fewer_sequences_than_nodes(step):
  certain = np.full((1, 3), -np.inf, np.float32)
  certain[0, 1] = 0
  tokens, _, result = level(step, certain, beam.root(), 3)
  for _ in range(2):
    assert tokens[0] == 1 and result.log_probs[0] == 0
    assert np.isfinite(result.scores).tolist() == [True, False, False]
    assert not np.isnan(result.scores).any()
    tokens, parents, result = level(step, np.repeat(certain, 3, axis=0),
                                    as_beam(*_leaves(result)), 3)
    assert parents[0] == 0


def test_perturbed_levels_are_consistent():
  first, second = random_log_probs(4, 1, 5), random_log_probs(5, 3, 5)
  for seed in range(20):
    tokens, parents, top = level(beam.perturbed, first, beam.root(), 3, seed)
    np.testing.assert_allclose(top.log_probs, first[0, tokens], atol=1e-6)
    # The root's value is 0, so the first level is conditioned on 0 as well.
    assert top.scores[0] == 0
    tokens, parents, low = level(beam.perturbed, second,
                                 as_beam(*_leaves(top)), 3, seed + 100)
    np.testing.assert_allclose(
        low.log_probs, top.log_probs[parents] + second[parents, tokens],
        atol=1e-6)
    assert low.scores[0] == top.scores[0] and parents[0] == 0
    assert (np.diff(low.scores) <= 0).all()
    assert (low.scores <= top.scores[parents]).all()
    assert len(set(zip(parents, tokens))) == 3


def two_levels(key, first, second, width):
  """The sequences of two tokens that a perturbed beam keeps, in its order."""
  keys = jax.random.split(key)
  top, _, state = beam.perturbed(keys[0], first[None], beam.root(), width)
  low, parents, _ = beam.perturbed(keys[1], second[top], state, width)
  return top[parents] * len(first) + low


def kept_counts(first, second, rows=30_000):
  keys = jax.random.split(jax.random.key(0), rows)
  draw = jax.jit(jax.vmap(lambda key: two_levels(
      key, jnp.asarray(first), jnp.asarray(second), 2)))
  return exactness.count(draw(keys), first.size**2)


def kept_distribution(first, second):
  """Two draws without replacement of the distribution over sequences."""
  sequences = np.exp(first.astype(np.float64)[:, None] + second).ravel()
  probs = np.zeros((len(sequences),) * 2)
  for i, j in itertools.permutations(np.flatnonzero(sequences), 2):
    probs[i, j] = sequences[i] * sequences[j] / (1 - sequences[i])
  return probs / probs.sum()


@pytest.mark.parametrize("zeros", [0, 1])
def test_perturbed_beam_is_a_sample_without_replacement(zeros):
  first, second = random_log_probs(6, 1, 3, zeros)[0], random_log_probs(
      7, 3, 3, zeros)
  p_value = exactness.p_value(kept_counts(first, second),
                              kept_distribution(first, second))
  assert p_value > exactness.MIN_P_VALUE


def test_control_unconditioned_gumbels_have_another_distribution(monkeypatch):
  monkeypatch.setattr(sampling, "truncate_gumbel",
                      lambda perturbed, peak, bound: perturbed)
  first, second = random_log_probs(6, 1, 3)[0], random_log_probs(7, 3, 3)
  p_value = exactness.p_value(kept_counts(first, second),
                              kept_distribution(first, second))
  assert p_value < helpers.MAX_P_VALUE_OF_CONTROL


def _leaves(result):
  return result.log_probs, result.scores
