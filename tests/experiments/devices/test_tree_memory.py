"""Trees that are chosen by memory, and the figure of a run."""

import json

import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.app import method_specs
from experiments.devices import memory_estimate
from experiments.devices import model_pair
from experiments.devices import tree_memory
from models import transformer
from support import tiny_models as tiny
from support.helpers import start


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


def test_figure_of_a_run(tmp_path):
  """Of the shipped pair; nothing is decoded."""
  methods = [dj.methods.rsd_c((2, 1)), dj.methods.rsd_c((4, 4))]
  efficiency = {"autoregressive": 1.0, methods[0].name: 2.0,
                methods[1].name: 2.05}
  points = [{"name": "rsd_c", "branching": b} for b in ((2, 1), (4, 4))]
  settings = dict(
      target="python-target", draft="python-draft", dtype="", draft_dtype="",
      weights="dtype", draft_weights="", methods=(), lengths=(2,), budgets=(),
      temperatures=(1.0,), prompts=4, prompt_length=32, batch=4, queue=0,
      max_new_tokens=32, trees={"length": {"2": points}})
  (tmp_path / "run.json").write_text(json.dumps({"settings": settings,
                                                 "starts": []}))
  with open(tmp_path / "results.jsonl", "w") as f:
    for name, value in efficiency.items():
      f.write(json.dumps({
          "method": name, "temperature": 1.0, "emitted": [9] * 4,
          "log_prob": [-9.0] * 4, "metrics": {
              "log_prob": [-1.0, None, None],
              "block_efficiency": [value, value - .1, value + .1]}}) + "\n")
  process = start("-m", "experiments.tree_budget", f"--workdir={tmp_path}",
                  "--batch=256", "--memory_budget=1GiB")
  output, errors = process.communicate()
  assert not process.returncode, errors
  lines = output.splitlines()
  assert lines[0] == "temperature 1"
  assert [line.split()[0] for line in lines[3:6]] == [
      "autoregressive", "rsd_c(2-1)", "rsd_c(4-4)"]
  # The smaller tree has more than 95 % of the tokens of the larger one.
  assert lines[6].startswith("of 1024.0 MiB: rsd_c(2-1), ")
  assert (tmp_path / "tree_budget.png").stat().st_size
