"""The assertions that users have, on right and wrong methods and samplers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.testing import assertions, exactness, rules, tables

TREE = expanders.gumbel_tree((2, 2))
RIGHT = dj.pair(TREE, verifiers.recursive(False))
FEW = dict(rows=20_000, length=3, vocab_sizes=(3,), drafters=("flat", "sharp"))


def with_rule(change):
  """The pair with another rule: `change(rule, uniforms, target, *rest)`."""
  rule = RIGHT.verifier.rule
  return RIGHT._replace(verifier=RIGHT.verifier._replace(
      rule=lambda *args: change(rule, *args)))


def too_generous(rule, uniforms, *rest):
  return rule(jnp.maximum(uniforms - 0.005, 0), *rest)


def no_residual_at_some_nodes(rule, uniforms, target, *rest):
  """In one of fifty, by the target's distribution there."""
  rank, residual = rule(uniforms, target, *rest)
  return rank, jnp.where(jnp.floor(target[0] * 1e4) % 50 == 0, target, residual)


def sorted_siblings():
  def expand(*args):
    tokens, *rest = TREE.expand(*args)
    return tokens.reshape(-1, 2).sort(axis=1).ravel(), *rest

  return RIGHT._replace(drafter=drafters.of_model(TREE._replace(expand=expand)))


@pytest.mark.parametrize("change, words", [
    (too_generous, "rule, node 5 with 2 children of drafter 'sharp'"),
    (no_residual_at_some_nodes, "rule, node 182 .* 'zeros'")])
def test_wrong_rules_are_found_before_texts_are_drawn(change, words):
  with pytest.raises(AssertionError, match=words):
    dj.testing.assert_exact(with_rule(change))


@pytest.mark.long
def test_texts_alone_find_what_is_too_generous():
  report = dj.testing.check(with_rule(too_generous), integrate=False,
                            vocab_sizes=(2,))
  assert not report.is_exact and report.smallest_bias < 0.005


def test_sorted_siblings_are_found_and_the_right_pair_is_not():
  report = dj.testing.assert_detects(RIGHT, sorted_siblings(), **FEW)
  assert "3 tokens, drafter 'flat', token" in str(report)
  with pytest.raises(AssertionError, match="not told .* for a bias below 0.0"):
    dj.testing.assert_detects(RIGHT, RIGHT, **FEW)


def test_any_sampler():
  """One that reads the table, and one that repeats a token now and then."""
  target, _ = tables.pair("flat", 3)

  def sampler(key, prompts, repeats=0.0):
    if key.shape:  # A key for each row.
      key = key[0]
    texts, last = [], jnp.asarray(prompts)[:, 0]
    for step in jax.random.split(key, 3):
      one, two = jax.random.split(step)
      new = jax.random.categorical(one, jnp.log(jnp.asarray(target))[last])
      last = jnp.where(jax.random.uniform(two, new.shape) < repeats, last, new)
      texts.append(last)
    return jnp.stack(texts, axis=1)

  report = dj.testing.assert_exact(sampler, target=target, length=3)
  assert "would have detected" in str(report) and report.smallest_bias < 0.02
  with pytest.raises(AssertionError, match="given tables, tokens"):
    dj.testing.assert_exact(lambda *args: sampler(*args, 0.1), target=target,
                            length=3)
  with pytest.raises(ValueError, match="target: "):
    dj.testing.assert_exact(sampler)


def test_smallest_bias_is_found_by_most_tests():
  rng, probs, total = np.random.default_rng(0), np.array([.5, .3, .1, .1]), 1000
  bias = assertions.smallest_bias(3, total, np.array([.3, .5]), 1e-3)
  moved = probs + bias * np.array([1, -1, 0, 0])
  results = [exactness.p_value(rng.multinomial(total, moved), probs) < 1e-3
             for _ in range(100)]
  assert 0.9 < np.mean(results) <= 1


@pytest.mark.parametrize("value, freedom", [(3, 1), (40, 5), (1600, 1295)])
def test_chi_square(value, freedom):
  np.testing.assert_allclose(exactness.chi_square_tail(value, freedom),
                             stats.chi2.sf(value, freedom), rtol=1e-9)


def test_quasi_random_points_are_even():
  points = rules.quasi_random(1 << 12, 2)
  assert points.min() >= 0 and points.max() < 1
  for corner in ((0.3, 0.7), (0.9, 0.2)):
    share = (points < corner).all(axis=1).mean()
    assert abs(share - np.prod(corner)) < 2e-3
