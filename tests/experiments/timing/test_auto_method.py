"""The choice of a method: its candidates, its parts, and once as a whole."""

import functools

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import tree
from experiments.app import launch, method_specs
from experiments.devices import mesh, mesh_shapes, model_pair
from experiments.timing import auto_method
from models import transformer
from models.heads import medusa
from support import tiny_models as tiny


def finding(measured, spec="speculative(2)", rate=100.0):
  return auto_method._Finding(
      spec, method_specs.read(spec), 0.6, 2.0, 0.1, 1.1, 1.8, measured, rate)


PLAIN = finding(1.0, auto_method.PLAIN)


def choice(*others, sizes=None):
  findings = [PLAIN, *others]
  return auto_method._choice(
      findings, sizes or {x.spec: 0 for x in findings})


def test_the_fastest_is_chosen_and_told():
  result = choice(finding(1.9), finding(1.5, "rsd_s(2, 3)"))
  assert result.spec == "speculative(2)"
  lines = result.report.splitlines()
  assert lines[-1] == ("speculative(2): 190.0 tokens/s in a trial, 1.90 times "
                       "the rate of plain decoding.")
  assert [line.split()[0] for line in lines[2:5]] == [
      "speculative(2)", "rsd_s(2x3)", "autoregressive"]
  assert lines[2].split()[1:] == ["60", "%", "2.00", "0.10", "1.10", "1.80",
                                  "1.90"]


def test_plain_decoding_where_nothing_is_faster():
  result = choice(finding(1.01))
  assert result.method.name == "autoregressive"
  assert result.report.endswith("no other is faster: speculative(2) has 1.01 "
                                "times as many.")
  assert choice().report.endswith("nothing else fits into the budget of "
                                  "memory.")


def test_of_a_budget_the_smallest_that_keeps_the_speed():
  result = choice(finding(1.9), finding(1.82, "rsd_s(2, 3)"), finding(
      1.5, "speculative(1)"), sizes={
          "speculative(2)": 9, "rsd_s(2, 3)": 8, "speculative(1)": 1,
          auto_method.PLAIN: 1})
  assert result.spec == "rsd_s(2, 3)"


@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("draft", [True, False])
def test_at_most_ten_candidates(draft, batch):
  plain, *others = auto_method.methods(draft, batch)
  assert plain.name == "autoregressive" and 1 < len(others) <= 10
  assert draft or not any(x.sampled.drafter.calls for x in others)


@pytest.mark.parametrize("spec, most, expected", [
    ("rsd_s(6, 5)", 3, "rsd_s(6, 3)"), ("rsd_s(6, 5)", 0, "rsd_s(6, 5)"),
    ("copy_or_draft(4)", 2, "copy_or_draft(2, copies=2)"),
    ("copy_or_draft(4)", 0, "copy_or_draft(4)"),
    ("copy_or_draft(1, width=3)", 1, "copy_or_draft(1, copies=1)")])
def test_no_tree_is_deeper_than_a_head_drafts(spec, most, expected):
  assert (method_specs.read(auto_method._within(spec, most)) is
          method_specs.read(expected))


@pytest.mark.parametrize("seconds, rounds", [(20.0, 4), (0.0, 1)])
def test_losers_leave_early(monkeypatch, seconds, rounds):
  """The bar ends at its total, be the time over before all rounds are or not.
  """
  monkeypatch.setattr(auto_method, "_ROUNDS", 4)
  monkeypatch.setattr(auto_method, "_SECONDS", seconds)
  bars, bar = [], auto_method.tqdm.tqdm
  monkeypatch.setattr(auto_method.tqdm, "tqdm", lambda **options: bars.append(
      bar(**options)) or bars[0])
  counts = {}

  def start(spec, steps):
    rate = {"autoregressive": 100, "fast": 200, "slow": 30}[spec]
    while True:
      counts[spec] = counts.get(spec, 0) + 1
      yield auto_method._Sample(rate, 1, 0, np.ones(1), steps, 1.0)

  samples = auto_method._measure(start, ["autoregressive", "fast", "slow"])
  assert [len(x) for x in samples.values()] == [rounds, rounds, 1]
  assert (bars[0].n, bars[0].total) == (3 + rounds,) * 2


def choose(monkeypatch, pair, sampling=dj.Sampling(), **options):
  monkeypatch.setattr(auto_method, "_ROUNDS", 2)
  monkeypatch.setattr(auto_method, "_MOST_STEPS", 2)
  return auto_method.choose(pair, tiny.PROMPTS, tiny.LENGTHS, 12, sampling,
                            **options)


def test_a_choice_for_two_models(monkeypatch):
  monkeypatch.setattr(auto_method, "_CANDIDATES", {("model", True): (
      "speculative(3)", "shared_budget(2, 3, 2)", "prompt_lookup(2)")})
  model = tiny.llama_models().target
  pair = model_pair.ModelPair(model.lm, model.params, model.lm, model.params,
                              None, 1.0)
  result = choose(monkeypatch, pair)
  lines = {x.split()[0]: x.split()[1:] for x in result.report.splitlines()}
  assert lines["speculative(3)"][0] == "100"
  assert float(lines["speculative(3)"][2]) > 3


@pytest.mark.cases(1)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_a_choice_for_a_head(monkeypatch, temperature):
  monkeypatch.setattr(auto_method, "_CANDIDATES", {("head", True): (
      "speculative(7, traversal)", "rsd_s(2, 3)")})
  config, params = tiny.LLAMA, tiny.random_model(tiny.LLAMA).params
  head = medusa.Config(2)
  pair = model_pair.ModelPair(
      transformer.with_features(config, (config.num_layers - 1,)), params,
      medusa.head(head, config), medusa.init(jax.random.key(0), head, config),
      None, 0.1)
  assert [tree.depth(x.sampled.drafter.layout) for x in auto_method.methods(
      pair.draft)] == [0, 2, 2]
  result = choose(monkeypatch, pair, dj.Sampling(temperature))
  assert f"\n{result.method.name}: " in result.report
  assert "cost of drafts" in result.report and " 0.10 " in result.report


def test_a_choice_on_a_mesh(monkeypatch, folders):
  monkeypatch.setattr(auto_method, "_CANDIDATES", {("model", True): (
      "speculative(2)", "prompt_lookup(2)")})
  pair = mesh.with_params(model_pair.open_pair(folders[0], folders[0]),
                          mesh_shapes.make((1, 1)))
  result = choose(monkeypatch, pair)
  lines = {x.split()[0]: x.split()[1:] for x in result.report.splitlines()}
  assert lines["speculative(2)"][0] == "100"
  assert float(lines["speculative(2)"][2]) > 2
  with pytest.raises(launch.UserError, match="without --memory_budget, and in"):
    choose(monkeypatch, pair, memory_budget=10**9)


def test_budgets_that_do_not_fit(monkeypatch):
  model = tiny.llama_models().target
  pair = model_pair.ModelPair(model.lm, model.params, None, None, None, 0.0)
  run = functools.partial(choose, monkeypatch, pair)
  with pytest.raises(launch.UserError, match="autoregressive needs"):
    run(memory_budget=10)
