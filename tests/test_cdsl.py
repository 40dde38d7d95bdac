"""CDSL against plain Python, its invariants, its program."""

import numpy as np
import pytest

import decoding_jax as dj
import lookahead_reference as reference
import models_for_tests as tiny
import test_cdlh as cdlh

TESTS = {None: lambda before, after: after > before}


def run(look, tau=0.5, seed=0, threshold=None, **kwargs):
  """The method whose options are those of the reference."""
  options = {x: kwargs.pop(x) for x in ("low_acceptance", "commit")
             if x in kwargs}
  method = dj.methods.cdsl(
      look.n, look.k, look.weight, look.reward_weight, tau,
      reward_test="progress" if threshold is None else "absolute",
      reward_threshold=threshold, rollout=look.rollout, **options)
  return cdlh.run(method, seed, **kwargs)


def gates(tau, low="target_rollout", commit="prefix", threshold=None):
  test = (lambda before, after: after > before) if threshold is None else (
      lambda before, after: after >= threshold)
  return reference.Gates(tau, test, low, commit)


@pytest.mark.parametrize("tau, low, commit, threshold, rollout", [
    (0.5, "target_rollout", "prefix", None, "target"),
    (2 / 3, "target_rollout", "prefix", 0.2, "draft"),
    (1.0, "cdlh_step", "prefix", None, "target"),
    (0.3, "target_rollout", "full", None, "target"),
])
def test_equals_plain_python(tau, low, commit, threshold, rollout):
  look = reference.Look(3, 4, rollout=rollout)
  seen = 0
  for seed in range(4):
    out = run(look, tau, seed, threshold, low_acceptance=low, commit=commit)
    expected = [reference.cdsl(row, look, gates(tau, low, commit, threshold))
                for row in cdlh.reference_rows(seed)]
    assert tiny.texts(out, cdlh.LENGTHS) == [text for text, _ in expected]
    states = [np.bincount([state for state, _ in log], minlength=4)
              for _, log in expected]
    np.testing.assert_array_equal(out.stats.extra["states"], states)
    seen = seen + np.sum(states, axis=0)
  assert (seen > 0).tolist() == [True, True, low != "cdlh_step", True]
