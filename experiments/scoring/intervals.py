"""Confidence intervals of ratios."""

import numpy as np

from decoding_jax import metrics


def interval(numerators, denominators, seed):
  """`[3]`, a ratio and its 95 % interval over rows; one row has none."""
  value = metrics.ratio(numerators, denominators)
  bounds = (np.nan, np.nan) if len(numerators) < 2 else (
      metrics.ratio_interval(numerators, denominators, seed))
  return np.array([value, *bounds])


def json_values(values):
  """Rounded, and with null for NaN, which is not JSON."""
  return [None if np.isnan(x) else round(float(x), 6) for x in values]
