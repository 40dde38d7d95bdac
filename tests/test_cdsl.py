"""CDSL against plain Python, its invariants, its program."""

import importlib

import jax
import numpy as np
import pytest

import decoding_jax as dj
import lookahead_reference as reference
import models_for_tests as tiny
import test_cdlh as cdlh

generate_lib = importlib.import_module("decoding_jax.generate")

LOOK = cdlh.LOOK


def make(look=LOOK, **options):
  """The method that `reference.cdsl` is given the options of."""
  return dj.methods.cdsl(look.n, look.k, look.weight, look.reward_weight,
                         rollout=look.rollout, **options)


def gates(acceptance_threshold=0.5, low_acceptance="target_rollout",
          commit="prefix", reward_test="progress", reward_threshold=None):
  """The same options for the reference."""
  def test(before, after):
    if reward_test == "progress":
      return after > before
    return after >= np.float32(reward_threshold)

  return reference.Gates(acceptance_threshold, test, low_acceptance, commit)


def check(out, expected, lengths):
  """Asserts texts and counts; returns the sum of the states."""
  assert tiny.texts(out, lengths) == [text for text, _ in expected]
  states = np.array([np.bincount([state for state, _ in log], minlength=4)
                     for _, log in expected])
  np.testing.assert_array_equal(out.stats.extra["states"], states)
  stats = jax.tree.map(np.asarray, out.stats)
  high, low = states[:, :2].sum(1), states[:, 2:].sum(1)
  searches = LOOK.k * states[:, 1::2].sum(1)
  assert ((high + searches <= stats.extra["reward_calls"]) &
          (stats.extra["reward_calls"] <= high + low + searches)).all()
  np.testing.assert_array_equal(stats.accepted_by_depth.sum(1), high + low)
  steps = stats.accepted_by_depth.shape[1] - 1
  assert ((high + low <= stats.emitted) &
          (stats.emitted <= (steps + 1) * (high + low))).all()
  most = stats.extra["states"] @ [0, steps, steps, 2 * steps]
  assert (stats.target_calls + stats.draft_calls <=
          (steps + 1) * (high + low) + most).all()
  for _, log in expected:
    assert all(1 <= count <= steps + 1 for _, count in log)
  return states.sum(axis=0)


@pytest.mark.parametrize("rollout, options", [
    ("target", {}),
    ("target", dict(acceptance_threshold=0.3, commit="full")),
    ("target", dict(acceptance_threshold=1, low_acceptance="cdlh_step")),
    ("draft", dict(acceptance_threshold=2 / 3, reward_test="absolute",
                   reward_threshold=0.2)),
], ids=str)
def test_equals_plain_python(rollout, options):
  look = LOOK._replace(rollout=rollout)
  states = sum(check(
      cdlh.run(make(look, **options), seed),
      [reference.cdsl(row, look, gates(**options))
       for row in cdlh.rows_of_tables(seed)], cdlh.LENGTHS)
               for seed in range(4))
  assert (states > 0).tolist() == [
      True, True, options.get("low_acceptance") is None, True]


@pytest.mark.parametrize("other", [
    dict(acceptance_threshold=0.75), dict(low_acceptance="cdlh_step"),
    dict(commit="full"), dict(reward_test="absolute", reward_threshold=0.0)],
                         ids=str)
def test_control_other_options_are_another_method(other):
  texts = tiny.texts(cdlh.run(make()), cdlh.LENGTHS)
  assert texts != [reference.cdsl(row, LOOK, gates(**other))[0]
                   for row in cdlh.rows_of_tables()]


@pytest.mark.parametrize("rollout", ["target", "draft"])
def test_transformers_equal_plain_forwards(rollout):
  """The caches after each state; the draft's falls far behind in S3."""
  look, models = LOOK._replace(rollout=rollout), tiny.llama_models()
  out = cdlh.run_transformers(make(look, acceptance_threshold=0.75), models)
  states = check(out, [
      reference.cdsl(row, look, gates(0.75))
      for row in cdlh.rows_of_transformers(models)], tiny.LENGTHS)
  assert (states > 0).all(), states
