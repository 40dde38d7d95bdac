"""What a benchmark says of forwards and of choices."""

import json

import ml_collections
import pytest

from experiments.app import method_specs
from experiments.benchmarking import auto_check
from experiments.benchmarking import forward_cost_tables
from experiments.benchmarking import runs as benchmark_runs
from experiments.benchmarking import systems
from experiments.benchmarking import tables as benchmark_tables
from experiments.devices import model_pair
from experiments.timing import auto_method
from experiments.timing import forward_cost
from support import tiny_models as tiny

CURVE = [[1, .010, .009, .012], [8, .015, .014, .016]]
KNOWN = {"float32": {
    "draft_dtype": "bfloat16", "target": CURVE,
    "draft": [[1, .001, .001, .001], [8, .003, .003, .003]],
    "capacity": [[512, .010], [800, .011], [8192, .03]]}}
PAIR = systems.Pair(None, None, None, 9, "float32", "bfloat16", "dtype")


def config(**update):
  return ml_collections.ConfigDict({
      "dtypes": ("float32",), "batches": (1, 2), "temperatures": (1.0,),
      "costs": True, "auto": True, "max_new_tokens": 8, "top_p": 1.0,
      "top_k": 0, "min_p": 0.0, **update})


def test_tables_of_costs():
  (title, lines), = forward_cost_tables.tables(KNOWN)
  assert title == ("Forwards in float32, of the draft in bfloat16, one row, "
                   "256 tokens cached")
  assert lines[-1] == ["8", "15.00 [14.00, 16.00]", "1.50",
                       "3.00 [3.00, 3.00]", "3.00"]
  assert forward_cost_tables.remarks(KNOWN) == [
      "A token in float32 with 256 tokens cached, of a budget of 8192: 1.10 "
      "times that of a cache of 512 slots (the cache has 800 by then; with "
      "8192 at once it would be 3.00)."]


def test_costs_are_measured_once(tmp_path, monkeypatch):
  calls = []
  monkeypatch.setattr(forward_cost_tables, "_measure", lambda models: (
      calls.append(models), KNOWN["float32"])[1])
  monkeypatch.setattr(systems, "with_dtype", lambda pair, dtype: dtype)
  for _ in range(2):
    assert forward_cost_tables.measured(config(), PAIR, tmp_path) == KNOWN
  assert calls == ["float32"]
  assert forward_cost_tables.measured(config(costs=False), PAIR, tmp_path) == {}


def test_what_is_measured(monkeypatch):
  """On models that are small, over caches that are."""
  model = tiny.random_model(tiny.LLAMA)
  for name, value in (("_LIVE", 3), ("_SHORT", 8), ("_LONG", 16)):
    monkeypatch.setattr(forward_cost_tables, name, value)
  monkeypatch.setattr(forward_cost, "TOKENS", (1, 2))
  monkeypatch.setattr(forward_cost, "ROUNDS", 1)
  monkeypatch.setattr(forward_cost, "_SPAN", 0.0)
  pair = model_pair.ModelPair(model.lm, model.params, model.lm, model.params,
                              None, 1.0)
  found = json.loads(json.dumps(forward_cost_tables._measure(pair)))
  assert [row[0] for row in found["target"]] == [1, 2] == [
      row[0] for row in found["draft"]]
  assert found["capacity"][0][0] == 8 and len(found["capacity"]) == 3
  assert all(seconds > 0 for _, seconds in found["capacity"])


def test_choices_are_kept_and_compared(tmp_path, monkeypatch):
  calls = []

  def choose(pair, texts, lengths, new, sampling, batch):
    calls.append(batch)
    spec = "rsd_c((2, 1))"
    return auto_method.Choice(method_specs.read(spec), spec, 20.0, 24.0,
                              "It is fast.", "")

  monkeypatch.setattr(auto_method, "choose", choose)
  monkeypatch.setattr(systems, "prompts", lambda *_: tiny.PROMPTS)
  monkeypatch.setattr(systems, "with_dtype", lambda *_: None)
  for _ in range(2):
    found = auto_check.from_config(config(), None, tmp_path)
  assert calls == [1, 2]
  assert list(auto_check.methods(found)) == ["rsd_c(2-1)"]
  entry = benchmark_runs.Entry(benchmark_runs.OURS, "rsd_c(2-1)", "float32", 1,
                               1.0)
  rows = benchmark_tables.rows([{
      **entry._asdict(), "round": 1, "seconds": 1.0, "emitted": 18, "steps": 9,
      "row_calls": 9, "peak_bytes": None}])
  assert auto_check.remarks(found, rows) == [
      "auto, Batch 1, temperature 1, float32: It is fast. Measured: 18.0, 0.90 "
      "times the trial and 0.75 times the prediction.",
      "auto, Batch 2, temperature 1, float32: It is fast."]
  assert auto_check.from_config(config(auto=False), None, tmp_path) == {}


@pytest.mark.parametrize("chosen,names", [
    ({}, ["a", "b"]), ({("float32", 1, 1.0): "c"}, ["a", "b", "c"]),
    ({("float32", 1, 1.0): "b"}, ["a", "b"]),
    ({("float32", 2, 1.0): "c"}, ["a", "b"])])
def test_what_is_chosen_is_an_entry(chosen, names):
  [group, _] = benchmark_runs.entries(config(), ["a", "b"], [], chosen)
  assert [entry.name for entry in group] == names


def test_a_profile_of_each_method(tmp_path, monkeypatch):
  def ours(_, pair, methods, texts, entry, number):
    return {"steps": 7, "entry": entry, "number": number}

  def profile(run, steps, folder):
    return f"{run()['entry'].name} {steps} {folder.name}"

  monkeypatch.setattr(systems, "prompts", lambda *_: tiny.PROMPTS)
  monkeypatch.setattr(systems, "ours", ours)
  monkeypatch.setattr(forward_cost_tables.profile, "profile", profile)
  assert forward_cost_tables.of_steps(
      config(), None, ["a(1)", "b(1/2)"],
      tmp_path) == ("a(1), float32, batch 1, temperature 1\na(1) 7 a(1)\n\n"
                    "b(1/2), float32, batch 1, temperature 1\nb(1/2) 7 b(1-2)")
