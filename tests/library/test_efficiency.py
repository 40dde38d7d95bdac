"""Tokens of a call: measured, and enumerated over all draws of its trees."""

import functools

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import enumeration, exactness

ROWS = 20_000
# Standard errors that a measured mean may lie off; a chance of 1 in 10^6.
SIGMAS = 5
TARGET, DRAFT = exactness.random_tables(4)
CHAIN, PAIRS = ((1,), (1,), (1,)), ((2,), (2, 2))
methods = dj.methods
# What draws the trees that a method verifies.
fixed = lambda children: lambda: enumeration.fixed_trees(DRAFT, children)
paths = lambda count: lambda: enumeration.merged_paths(DRAFT, (count,))
beam = lambda: enumeration.beams(DRAFT, 2, 2)
CASES = [
    (methods.speculative(3), fixed(CHAIN)), (methods.rsd_s(2, 2), beam),
    (methods.speculative(3, "traversal"), fixed(CHAIN)),
    (methods.rsd_c((2, 2)), fixed(PAIRS)),
    (methods.rsd_c((2, 2), "traversal"), fixed(PAIRS)),
    (methods.rsd_c((3, 1)), fixed(((3,), (1, 1, 1)))),
    (methods.specinfer(3, 1), paths(3)), (methods.spectr(3, 1), paths(3))]


@functools.lru_cache(maxsize=None)
def enumerated(method, trees):
  """Expected tokens of the first call."""
  return enumeration.joint_distribution(method.sampled.verifier, trees(),
                                        TARGET)[1]


def deviation(method, expected):
  """How many standard errors the mean tokens of first calls are off."""
  _, stats = exactness.frequencies(method, TARGET, DRAFT, ROWS, 1)
  depths = np.asarray(stats.accepted_by_depth)
  tokens = 1 + depths @ np.arange(depths.shape[1])
  return abs(tokens.mean() - expected) / (tokens.std() / np.sqrt(ROWS))


@pytest.mark.cases(2)
@pytest.mark.parametrize("method, trees", CASES,
                         ids=lambda x: getattr(x, "name", ""))
def test_tokens_of_a_call(method, trees):
  assert deviation(method, enumerated(method, trees)) <= SIGMAS


def test_control_another_width_is_told_apart():
  assert deviation(methods.rsd_s(3, 2),
                   enumerated(methods.rsd_s(2, 2), beam)) > SIGMAS


@pytest.mark.cases(1)
@pytest.mark.parametrize("make, trees", [
    (functools.partial(methods.speculative, 3), fixed(CHAIN)),
    (functools.partial(methods.rsd_c, (2, 2)), fixed(PAIRS))],
                         ids=["chain", "tree"])
def test_traversal_accepts_more(make, trees):
  assert enumerated(make("traversal"), trees) > enumerated(make(), trees) + 0.01
