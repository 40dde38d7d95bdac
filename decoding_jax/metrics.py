"""Metrics of generations, from the counts in `types.Stats`.

Every figure is a ratio of two sums over prompts, and its interval comes from
drawing the prompts again with replacement: the tokens of one prompt are far
from independent, the prompts are not. Plain numpy, in float64.
"""

import functools

import numpy as np

RESAMPLES = 2000


def ratio(numerators, denominators):
  """Returns sum over sum of `[B]`; NaN if the denominators add up to 0."""
  return float(_divide(_sum(numerators), _sum(denominators)))


@functools.lru_cache(maxsize=4)  # Many figures are of the same rows.
def resampled(rows: int, seed: int):
  """Returns `[RESAMPLES, rows]`, how often a bootstrap draws each row."""
  return np.random.default_rng(seed).multinomial(
      rows, np.full(rows, 1 / rows), size=RESAMPLES)


def ratio_interval(numerators, denominators, seed=0, level=0.95):
  """Returns (low, high) of `ratio` over rows, a percentile bootstrap.

  The same seed and B draw the same rows, so that intervals of several methods
  are comparable. NaN if no ratio is defined (Efron and Tibshirani 1993, "An
  Introduction to the Bootstrap", chapter 13).
  """
  numerators, denominators = _paired(numerators, denominators)
  counts = resampled(len(numerators), seed)
  return _percentiles(
      _divide(counts @ numerators, counts @ denominators), level)


def relative_interval(numerators, denominators, other_numerators,
                      other_denominators, seed=0, level=0.95):
  """Returns (low, high) of a ratio over another one, rows drawn together."""
  a, b, c, d = _same_rows(numerators, denominators, other_numerators,
                          other_denominators)
  counts = resampled(len(a), seed)
  return _percentiles(_divide(_divide(counts @ a, counts @ b),
                              _divide(counts @ c, counts @ d)), level)


def deviation(numerators, denominators, other_numerators, other_denominators):
  """Returns the difference of two ratios over the same rows.

  It is in standard errors of the delta method for paired rows (Cochran 1977,
  "Sampling Techniques", chapter 6), so that 2 is unlikely to be chance:
  positive if the first ratio is the larger, 0 if no row differs, NaN for fewer
  than two rows or where a ratio is not defined.
  """
  a, b, c, d = _same_rows(numerators, denominators, other_numerators,
                          other_denominators)
  gap = ratio(a, b) - ratio(c, d)
  if len(a) < 2 or np.isnan(gap):
    return float("nan")
  residuals = ((a - ratio(a, b) * b) / b.mean() -
               (c - ratio(c, d) * d) / d.mean())
  error = residuals.std(ddof=1) / np.sqrt(len(a))
  # Ratios of equal rows may still differ in their last digit.
  if abs(gap) <= 1e-9 * abs(ratio(a, b)):
    return 0.0
  return float(gap / error) if error else float(np.copysign(np.inf, gap))


def block_efficiency(emitted, target_calls):
  """Returns tokens emitted per target call, the extra one included.

  Leviathan et al. 2023, arXiv 2211.17192, section 3.1; the name is from SpecTr,
  arXiv 2310.15141.
  """
  return ratio(emitted, target_calls)


def mbsu(efficiency, calls, parameter_ratio):
  """Returns the memory-bound speed-up: block efficiency over memory read.

  Where reading the weights is all that costs, a step reads the target once and
  the draft `calls` times, `parameter_ratio` as large (Goel et al. 2024, arXiv
  2403.00858; a metric of arXiv 2402.14160).
  """
  return efficiency / (calls * parameter_ratio + 1)


def parallel_latency(target_calls, draft_calls, draft_cost):
  """Returns the simulated latency, in target calls, of models run at once.

  A round of PEARL (arXiv 2408.11850) takes as long as the slower one of its
  target call and its draft calls, each `draft_cost` of a target call. It is a
  figure for two devices that exchange tokens in no time, not a measurement.
  """
  return np.maximum(np.asarray(draft_calls, np.float64) * draft_cost,
                    np.asarray(target_calls, np.float64))


def mean_accepted(accepted_by_depth, target_calls, post_verify_calls=0):
  """Returns mean accepted tokens: drafted ones from a rejection to the next.

  PEARL's own metric (arXiv 2408.11850), whose drafts go on over rounds while
  all are accepted, in `post_verify_calls [B]`. Where each call ends its draft,
  it is the mean a call. `accepted_by_depth` is `[B, D + 1]`.
  """
  counts = _sum(accepted_by_depth)
  return ratio(counts @ np.arange(len(counts)),
               np.subtract(target_calls, post_verify_calls))


def token_rate(emitted, seconds):
  """Returns tokens per second; `seconds [B]` is of each row or batch."""
  return ratio(emitted, seconds)


def acceptance_by_depth(accepted_by_depth):
  """Returns the share `[D]` of target calls that passed a level they reached.

  NaN for levels never reached; `accepted_by_depth [B, D + 1]` counts calls that
  accepted exactly 0, 1, ..., D tokens.
  """
  calls = _sum(accepted_by_depth)
  at_least = np.cumsum(calls[::-1])[::-1]
  return _divide(at_least[1:], at_least[:-1])


def acceptance_by_rank(accepted_by_rank, tested_by_rank):
  """Returns `[K]`, the share of tested siblings accepted; NaN if none."""
  return _divide(_sum(accepted_by_rank), _sum(tested_by_rank))


def _sum(rows):
  return np.asarray(rows, np.float64).sum(axis=0)


def _divide(numerator, denominator):
  with np.errstate(divide="ignore", invalid="ignore"):
    return np.where(denominator == 0, np.nan,
                    np.divide(numerator, denominator))


def _paired(a, b):
  a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
  if a.shape != b.shape or a.ndim != 1 or not len(a):
    raise ValueError(f"shapes {a.shape} and {b.shape} are not two [B], B > 0.")
  return a, b


def _same_rows(numerators, denominators, other_numerators, other_denominators):
  """Returns both pairs of `[B]` arrays, in float64."""
  a, b = _paired(numerators, denominators)
  c, d = _paired(other_numerators, other_denominators)
  if len(a) != len(c):
    raise ValueError(f"{len(a)} rows are compared with {len(c)}.")
  return a, b, c, d


def _percentiles(values, level):
  """Returns the ends of the middle `level` of values, NaN left out."""
  values = values[~np.isnan(values)]
  if not len(values):
    return float("nan"), float("nan")
  tail = (1 - level) / 2
  low, high = np.quantile(values, (tail, 1 - tail))
  return float(low), float(high)
