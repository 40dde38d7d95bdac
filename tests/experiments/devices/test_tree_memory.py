"""Trees that are chosen by memory."""

import pytest

from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import memory_estimate
from experiments.devices import model_pair
from experiments.devices import tree_memory
from models import transformer
from support import tiny_models as tiny


def test_the_smallest_tree_that_fits():
  lm = transformer.language_model(tiny.LLAMA)
  params = transformer.abstract_params(tiny.LLAMA)
  pair = model_pair.ModelPair(lm, params, lm, params, None, 1.0)
  size_of = tree_memory.bytes_of(pair, 64, 32, 32, greedy=False)
  plans = tree_memory.plans("rsd_c", ("0.7", "0.4", ".3"), 0.1)
  rates = [plan.rate for plan in plans]
  assert rates == sorted(rates, reverse=True)
  budget = (size_of(plans[0]) + min(map(size_of, plans))) // 2
  found = tree_memory.smallest(plans, size_of, budget)
  assert size_of(found) <= budget < size_of(plans[0])
  # Some tree that fits is faster, but not by much.
  best = max(plan.rate for plan in plans if size_of(plan) <= budget)
  assert .95 * best <= found.rate
  smaller = [plan for plan in plans if plan.rate >= .95 * best and
             size_of(plan) < size_of(found)]
  assert not smaller
  method = method_specs.read(found.spec)
  assert size_of(found) == pytest.approx(sum(memory_estimate.estimate(
      pair, [method.sampled], 64, 32, 32)), rel=0.05)


@pytest.mark.parametrize("name, acceptance, words", [
    ("rsd_c", (), "probabilities between 0 and 1"),
    ("rsd_c", ("0.5", "1.5"), "--acceptance=0.5,1.5"),
    ("rsd_c", ("much",), "--acceptance=much: probabilities"),
    ("suffix", ("0.5",), "the trees of autoregressive, opt_tree")])
def test_what_is_no_acceptance_and_no_tree(name, acceptance, words):
  with pytest.raises(launch.UserError, match=words):
    tree_memory.plans(name, acceptance, 0.1)


def test_nothing_fits():
  plans = tree_memory.plans("speculative", (0.7,), 0.1)
  with pytest.raises(launch.UserError, match="speculative needs about 7 bytes"):
    tree_memory.smallest(plans, lambda plan: 7, 6)
