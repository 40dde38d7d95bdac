"""What `auto` expects of the trees of a run, beside what was measured."""

import math

import numpy as np
import pytest

from decoding_jax.speculation import tree_planning
from experiments import plan_check
from experiments.app import launch

ACCEPT = tree_planning.Acceptance(np.array([.6, .3]), np.ones(3), np.zeros(3))
ACCEPTS = {"recursive": ACCEPT,
           "traversal": ACCEPT._replace(hazard=np.array([1, 2, 2.0])),
           "match": ACCEPT._replace(by_rank=np.array([.9, .8]))}


def predicted(name, temperature=1.0, **sizes):
  return plan_check.predicted({"name": name, **sizes}, ACCEPTS, temperature)


def test_expected_tokens():
  assert predicted("speculative", depth=2) == pytest.approx(1 + .6 + .36)
  block = 1 + .6 + .6 * (1 - .4**2)
  assert predicted("speculative", depth=2, verification="block") == (
      pytest.approx(block))
  # At temperature 0 all verify alike.
  assert predicted("speculative", 0.0, depth=2, verification="block") == (
      pytest.approx(1.96))
  assert predicted("rsd_c", branching=(2, 1)) == pytest.approx(
      1 + (.6 + .4 * .3) * 1.6)
  assert predicted("opt_tree", nodes=2, width=2, depth=1) == pytest.approx(
      1 + .9 + .1 * .8)
  assert predicted("rsd_s", width=2, depth=2) == pytest.approx(1.96)
  with pytest.raises(launch.UserError, match="spectr: chains, rsd_c"):
    predicted("spectr", num_paths=2, depth=2)


@pytest.mark.parametrize("spec", [
    dict(name="rsd_s", width=2, depth=2, verification="rheo"),
    dict(name="specinfer", num_paths=2, depth=2, verification="gbv"),
    dict(name="specinfer", num_paths=2, depth=2)])
def test_what_auto_does_not_try(spec):
  assert predicted(**spec) == -math.inf


def test_a_choice_is_good_within_the_interval_of_the_best():
  measured = {"a": (2.5, [2.0, 1.9, 2.1]), "b": (2.0, [2.05, 1.95, 2.15])}
  assert plan_check.verdict(measured) == ["a", "2.50", "2.00±0.10", "b",
                                          "2.05±0.10", "yes"]
  measured["b"] = 2.0, [2.3, 2.2, 2.4]
  assert plan_check.verdict(measured)[-1] == "no"
  measured["a"] = 1.0, [2.0, 1.9, 2.1]
  assert plan_check.verdict(measured)[-1] == "yes"
