"""Metrics against hand calculations."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import metrics


def test_ratio():
  assert metrics.ratio([1, 9], [1, 3]) == 2.5
  assert metrics.ratio(jnp.array([1, 9]), jnp.array([1, 3])) == 2.5
  assert math.isnan(metrics.ratio([0, 0], [0, 0]))
  assert math.isnan(metrics.ratio([], []))


def test_rates():
  # 3 + 1 + 2 tokens in 3 calls, and 4 tokens in 1.
  assert metrics.block_efficiency([6, 4], [3, 1]) == 2.5
  # A draft of a tenth of the target, run four times: 1.4 targets a step.
  assert metrics.mbsu(2.8, 4, 0.1) == pytest.approx(2.0)
  # Plain decoding.
  assert metrics.mbsu(1.0, 0, 0.1) == 1.0
  assert metrics.token_rate([30, 50], [1.0, 3.0]) == 20


def test_acceptance():
  # 10 calls; 2 accept nothing, 4 one token, 1 two, 3 three.
  by_depth = metrics.acceptance_by_depth
  np.testing.assert_allclose(by_depth([[1, 4, 0, 3], [1, 0, 1, 0]]),
                             [8 / 10, 4 / 8, 3 / 4])
  # Levels never reached, and plain decoding.
  np.testing.assert_array_equal(by_depth([[5, 0, 0]]), [0, np.nan])
  assert by_depth([[7], [9]]).shape == (0,)
  np.testing.assert_array_equal(metrics.acceptance_by_rank(
      [[3, 1, 0], [3, 0, 0]], [[5, 2, 0], [4, 1, 0]]), [6 / 9, 1 / 3, np.nan])


def test_interval_holds_the_ratio_and_is_reproducible():
  rng = np.random.default_rng(0)
  calls = rng.integers(20, 40, size=50)
  emitted = rng.binomial(3 * calls, 0.8)
  low, high = metrics.ratio_interval(emitted, calls)
  assert low < metrics.ratio(emitted, calls) < high
  assert (low, high) == metrics.ratio_interval(emitted, calls)
  assert (low, high) != metrics.ratio_interval(emitted, calls, seed=1)
  # It is as wide as a normal one.
  values = np.random.default_rng(1).normal(5, 2, size=400)
  low, high = metrics.ratio_interval(values, np.ones(400))
  expected = 2 * 1.96 * values.std() / math.sqrt(400)
  assert high - low == pytest.approx(expected, rel=0.1)


def test_interval_covers_the_truth_as_often_as_it_says():
  # Of 100 experiments 91 to 99 cover it, in 95 % of all seeds.
  rng = np.random.default_rng(2)
  hits = 0
  for _ in range(100):
    low, high = metrics.ratio_interval(rng.normal(1, 1, 60), np.ones(60))
    hits += low <= 1 <= high
  assert 90 <= hits <= 99


def test_intervals_of_levels_and_of_special_rows():
  values = np.arange(20.0)
  low, high = metrics.ratio_interval(values, np.ones(20), level=0.5)
  wide_low, wide_high = metrics.ratio_interval(values, np.ones(20))
  assert wide_low < low < high < wide_high
  assert metrics.ratio_interval([3, 3, 3], [2, 2, 2]) == (1.5, 1.5)
  assert all(map(math.isnan, metrics.ratio_interval([0, 0], [0, 0])))
  for a, b in (([], []), ([1, 2], [1]), ([[1]], [[1]])):
    with pytest.raises(ValueError, match="not two"):
      metrics.ratio_interval(a, b)


def test_relative_interval_is_of_rows_drawn_together():
  rng = np.random.default_rng(4)
  seconds = rng.uniform(1, 100, size=40)
  tokens = rng.integers(5, 60, size=40)
  # However much rows differ, each is twice as fast.
  assert metrics.relative_interval(tokens, seconds, tokens, 2 * seconds) == (
      pytest.approx((2, 2)))
  noisy = seconds * rng.uniform(0.9, 1.1, size=40)
  low, high = metrics.relative_interval(tokens, seconds, tokens, 2 * noisy)
  assert 1.9 < low < 2 * noisy.sum() / seconds.sum() < high < 2.1


def test_deviation_of_means_is_the_paired_t_statistic():
  a, b = np.array([1.0, 2, 4, 7]), np.array([1.0, 1, 5, 4])
  gap = a - b
  expected = gap.mean() / (gap.std(ddof=1) / 2)
  ones = np.ones(4)
  assert metrics.deviation(a, ones, b, ones) == pytest.approx(expected)
  assert metrics.deviation(b, ones, a, ones) == pytest.approx(-expected)


def test_deviation_under_the_null_is_standard_normal():
  rng = np.random.default_rng(3)
  lengths = rng.integers(5, 60, size=(300, 2, 80))
  sums = rng.normal(2 * lengths, np.sqrt(lengths))
  results = [metrics.deviation(s[0], n[0], s[1], n[1])
             for s, n in zip(sums, lengths)]
  assert abs(np.mean(results)) < 0.2
  assert 0.9 < np.std(results) < 1.1


def test_deviation_of_special_rows():
  assert metrics.deviation([1, 2], [3, 4], [1, 2], [3, 4]) == 0
  assert metrics.deviation([2, 2], [1, 1], [1, 1], [1, 1]) == math.inf
  assert math.isnan(metrics.deviation([1], [1], [2], [1]))


@pytest.mark.parametrize("compare", [
    metrics.relative_interval, metrics.deviation])
def test_other_rows_are_not_compared(compare):
  with pytest.raises(ValueError, match="2 rows are compared with 3"):
    compare([1, 2], [1, 1], [1, 2, 3], [1, 1, 1])
