"""Tests of `scoring.intervals`."""

import numpy as np
import pytest

from experiments.scoring import intervals


def test_gain_of_equal_rows_is_known_without_doubt():
  """Rows differ, but in the same way in both ratios."""
  tokens, calls = np.full(8, 12), np.arange(3, 11)
  found = intervals.gain([((tokens, calls), (tokens, 2 * calls)),
                          ((2 * tokens, calls), (tokens, calls))])
  np.testing.assert_allclose(found, 1, atol=1e-12)


def test_gain_is_a_geometric_mean():
  pairs = [((np.ones(4), np.ones(4)), (np.ones(4), np.full(4, calls)))
           for calls in (2, 8)]
  assert intervals.gain(pairs)[0] == pytest.approx(4 - 1)


def test_gain_of_noise_is_around_nothing():
  rng = np.random.default_rng(0)
  first, second = rng.integers(5, 15, (2, 200))
  value, low, high = intervals.gain([((np.full(200, 30), first),
                                      (np.full(200, 30), second))])
  assert low < value < high and low < 0 < high


def test_one_row_has_no_interval():
  value, low, high = intervals.gain([(([3], [1]), ([3], [2]))])
  assert value == pytest.approx(1) and np.isnan([low, high]).all()
