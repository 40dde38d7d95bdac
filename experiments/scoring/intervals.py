"""Confidence intervals of ratios."""

import numpy as np

from decoding_jax import metrics


def interval(numerators, denominators, seed):
  """Returns `[3]`, a ratio and its 95 % interval over rows; NaN for one row."""
  value = metrics.ratio(numerators, denominators)
  bounds = (np.nan, np.nan) if len(numerators) < 2 else (
      metrics.ratio_interval(numerators, denominators, seed))
  return np.array([value, *bounds])


def relative(numerators, denominators, other_numerators, other_denominators,
             seed):
  """Returns `[3]`, a ratio over another one of the same rows; see `interval`.
  """
  rows = numerators, denominators, other_numerators, other_denominators
  value = metrics.ratio(*rows[:2]) / metrics.ratio(*rows[2:])
  bounds = (np.nan, np.nan) if len(numerators) < 2 else (
      metrics.relative_interval(*rows, seed))
  return np.array([value, *bounds])


def gain(pairs, seed=0):
  """Returns how much larger ratios are than others over the same rows, `[3]`.

  `pairs` are ((numerators, denominators), (numerators, denominators)), all
  `[R]`: the geometric mean of first over second, less 1, and its 95 % interval,
  whose bootstrap draws the same rows for all; NaN for the interval of one row.
  """
  rows = len(pairs[0][0][0])
  draws = np.concatenate([np.ones((1, rows)), metrics.resampled(rows, seed)])
  logs = [[np.log(draws @ np.asarray(over)) - np.log(draws @ np.asarray(under))
           for over, under in pair] for pair in pairs]
  found = np.expm1(np.mean([first - second for first, second in logs], axis=0))
  bounds = np.quantile(found[1:], (0.025, 0.975)) if rows > 1 else (np.nan,) * 2
  return np.array([found[0], *bounds])


def json_values(values):
  """Rounds values for JSON; NaN, which JSON lacks, becomes None."""
  return [None if np.isnan(x) else round(float(x), 6) for x in values]
