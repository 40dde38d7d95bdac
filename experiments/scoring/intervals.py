"""Confidence intervals of ratios."""

import numpy as np

from decoding_jax import metrics


def interval(numerators, denominators=None, seed=0):
  """Returns `[3]`, a ratio or mean and its 95 % interval; NaN for one row."""
  if denominators is None:
    denominators = np.ones(len(numerators))
  value = metrics.ratio(numerators, denominators)
  bounds = (np.nan, np.nan) if len(numerators) < 2 else (
      metrics.ratio_interval(numerators, denominators, seed))
  return np.array([value, *bounds])


def relative(numerators, denominators, other_numerators, other_denominators,
             seed=0):
  """Returns `[3]`, a ratio over another of the same rows; see `interval`."""
  rows = numerators, denominators, other_numerators, other_denominators
  ends = (np.nan, np.nan) if len(numerators) < 2 else (
      metrics.relative_interval(*rows, seed))
  return np.array([metrics.ratio(*rows[:2]) / metrics.ratio(*rows[2:]), *ends])


def json_values(values):
  """Rounds values for JSON; NaN, which JSON lacks, becomes None."""
  return [None if np.isnan(x) else round(float(x), 6) for x in values]
