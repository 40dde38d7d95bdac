"""Block efficiency without context: the exact value, by enumeration."""

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import verifiers
from decoding_jax.testing import exactness
from support import helpers

ROWS = 20_000
# Standard errors that a measured mean may lie off; a chance of 1 in 10^6.
SIGMAS = 5

TARGET = np.array([0.45, 0.3, 0.15, 0.1])
DRAFT = np.array([0.2, 0.5, 0.1, 0.2])


def measure(method):
  """Mean accepted tokens of the first call of each row, and its error."""
  size = len(TARGET)
  _, stats = exactness.frequencies(
      method, np.tile(TARGET, (size, 1)), np.tile(DRAFT, (size, 1)), ROWS, 1)
  depths = np.asarray(stats.accepted_by_depth)
  accepted = depths @ np.arange(depths.shape[1])
  return accepted.mean() + 1, accepted.std() / np.sqrt(ROWS)


def chance(rule, size, replacement):
  """Probability that one of `size` siblings is accepted."""
  draws = list(helpers.ordered_draws(DRAFT, size, replacement))
  return helpers.enumerate_rule(rule, TARGET, DRAFT, draws, size)[1]


def without(*branching):
  rule = verifiers.recursive(False).rule
  return helpers.product_efficiency([chance(rule, b, False) for b in branching])


def check(method, expected):
  measured, error = measure(method)
  # All rows alike (every draft accepted) leave no error at all.
  assert abs(measured - expected) <= SIGMAS * error


@pytest.mark.cases(1)
@pytest.mark.parametrize("branching", [(1,), (2, 2), (3, 2)], ids=str)
def test_rsd_c(branching):
  check(dj.methods.rsd_c(branching), without(*branching))


def test_speculative():
  alpha = np.minimum(TARGET, DRAFT).sum()
  check(dj.methods.speculative(3), 1 + alpha + alpha**2 + alpha**3)


@pytest.mark.parametrize("num_paths", [3])
def test_specinfer(num_paths):
  check(dj.methods.specinfer(num_paths, 1), helpers.product_efficiency(
      [chance(verifiers.recursive(True).rule, num_paths, True)]))


@pytest.mark.parametrize("num_paths", [3])
def test_spectr(num_paths):
  check(dj.methods.spectr(num_paths, 1), helpers.product_efficiency(
      [chance(verifiers.k_seq().rule, num_paths, True)]))
