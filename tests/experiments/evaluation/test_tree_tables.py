"""Tables of the best trees, and what checks a run."""

import math

import numpy as np
import pytest

from experiments.app import text_tables
from experiments.evaluation import record_figures
from experiments.evaluation import results_store
from experiments.evaluation import tree_tables

_POINTS = {("length", 2): ["speculative(2)", "rsd_c(2-2)", "rsd_c(4-1)"],
           ("length", 3): ["speculative(3)"],
           ("budget", 6): ["rsd_c(2-2)"]}
_DEPTHS = {"autoregressive": 0, "speculative(2)": 2, "speculative(3)": 3,
           "rsd_c(2-2)": 2, "rsd_c(4-1)": 2}
_CALLS = {"autoregressive": 30, "speculative(2)": 15, "speculative(3)": 12,
          "rsd_c(2-2)": 10, "rsd_c(4-1)": 14}


def _record(method, temperature, log_prob=-60.0):
  """Four prompts of 30 tokens in two batches of a second."""
  depth = _DEPTHS[method]
  record = {
      "method": method, "temperature": temperature, "depth": depth,
      "tree_nodes": 6 if depth else 0, "emitted": [30] * 4,
      "target_calls": [_CALLS[method] + i % 2 for i in range(4)],
      "draft_calls": [depth * (_CALLS[method] + i % 2) for i in range(4)],
      "log_prob": [log_prob + i for i in (-1, 1, 2, -2)],
      "accepted_by_depth": [[1, *[2] * depth]] * 4, "compile_seconds": 1.5,
      "accepted_by_rank": [9, 1, 0] if depth else [],
      "tested_by_rank": [12, 3, 0] if depth else [],
      "seconds": [1.0, 1.5], "tokens": [60, 60], "baseline_rate": 40.0,
      "row_steps": [2 * (_CALLS[method] + 1)] * 2}
  return {**record, "metrics": record_figures.of_record(record, 0.1)}


def _cells(temperatures=(0.5, 1.0), **log_probs):
  records = [_record(method, t, log_probs.get(method.split("(")[0], -60.0))
             for t in temperatures for method in _DEPTHS]
  return record_figures.long_records(records, None, 0.1)


def test_figures_of_a_record():
  got = _record("rsd_c(2-2)", 1.0)["metrics"]
  assert got["block_efficiency"][0] == pytest.approx(120 / 42, abs=1e-6)
  low, high = got["block_efficiency"][1:]
  assert 30 / 11 <= low < 120 / 42 < high <= 3
  np.testing.assert_allclose(
      got["mbsu"], np.divide(got["block_efficiency"], 1.2), atol=1e-6)
  assert got["token_rate"] == [48, 40, 60]
  assert got["token_rate_ratio"] == [1.2, 1, 1.5]
  assert got["log_prob"][0] == -2
  # Two of four rows end a step before the other one of their batch.
  assert got["idle_share"] == [pytest.approx(2 / 44, abs=1e-6)]
  assert got["acceptance_by_depth"] == [[0.8] * 3, [0.5] * 3]
  assert got["acceptance_by_rank"] == [0.75, 0.333333, None]


def test_mbsu_where_no_model_drafts():
  """However deep its tree, only the target is read."""
  record = {**_record("rsd_c(2-2)", 1.0), "draft_calls": [0] * 4}
  got = record_figures.of_record(record, 0.1)
  assert got["mbsu"] == got["block_efficiency"]


def test_figures_of_one_batch_have_no_interval_of_speed():
  record = {**_record("rsd_c(2-2)", 1.0), "seconds": [2.0], "tokens": [120]}
  assert record_figures.of_record(record, 0.1)["token_rate"] == [60, None, None]


def test_a_cell_of_two_experiments_is_reported_in_both():
  found = [r for r in tree_tables.best(_cells(), _POINTS)
           if (r["label"], r["metric"]) == ("RSD-C", "mbsu")]
  assert {r["method"] for r in found} == {"rsd_c(2-2)"}
  assert [(r["experiment"], r["point"], r["temperature"]) for r in found] == [
      ("length", 2, 0.5), ("budget", 6, 0.5),
      ("length", 2, 1.0), ("budget", 6, 1.0)]


def test_best_is_chosen_by_its_metric():
  cells = _cells()
  for r in cells:
    if (r["method"], r["metric"]) == ("rsd_c(4-1)", "token_rate_ratio"):
      r["value"] = 9.0
  chosen = {r["metric"]: r["method"] for r in tree_tables.best(cells, _POINTS)
            if (r["label"], r["experiment"]) == ("RSD-C", "length")}
  assert chosen["block_efficiency"] == "rsd_c(2-2)"
  assert chosen["token_rate_ratio"] == "rsd_c(4-1)"


def _deviating(count, deviation=None, **more):
  """Cells of so many prompts, at a distance from plain decoding."""
  return [{**r, "prompts": count, **more} | (
      {"value": deviation} if deviation is not None
      and r["metric"] == "deviation" else {}) for r in _cells()]


def test_sanity_agrees_when_nothing_differs():
  assert "agrees with" in tree_tables.sanity(_deviating(16))


def test_sanity_tells_a_changed_distribution():
  cells = [{**r, "prompts": 16} for r in _cells(rsd_c=-75.0)]
  line = tree_tables.sanity(cells)
  assert "DIFFERS FROM" in line and "rsd_c" in line


@pytest.mark.parametrize("temperature, ties", [(0.0, True), (1.0, False)])
def test_sanity_at_temperature_0_speaks_of_ties(temperature, ties):
  line = tree_tables.sanity(_deviating(16, 9.0, temperature=temperature))
  assert "DIFFERS FROM" in line and ("two tokens tie" in line) == ties


def test_sanity_is_no_false_alarm_for_few_prompts():
  """Some standard errors away by chance, where errors are so uncertain."""
  assert "DIFFERS FROM" in tree_tables.sanity(_deviating(100, 4.0))
  assert "agrees with" in tree_tables.sanity(_deviating(10, 4.0))


@pytest.mark.parametrize("deviation", [0.0, 6.0, 600.0])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_sanity_tells_nothing_where_nearly_all_would_be_allowed(
    count, deviation):
  assert tree_tables.sanity(_deviating(count, deviation)) == (
      "Log-probability of the output: too few prompts to compare.")


def test_sanity_of_the_default_run():
  """Sixteen prompts, 112 cells."""
  cell = next(r for r in _deviating(16, -2.8) if r["depth"]
              and r["metric"] == "deviation")
  line = tree_tables.sanity([{**cell, "method": f"m{i}"} for i in range(112)])
  assert "agrees with" in line and "(5.3 allowed)" in line


def test_sanity_forgives_rounding():
  found = [r["value"] for r in _cells(rsd_c=-60.0 - 1e-3)
           if r["metric"] == "deviation"]
  assert found == [0] * 10


def test_sanity_of_one_prompt():
  assert "too few prompts" in tree_tables.sanity(_deviating(1, math.nan))


def test_idleness_names_the_worst():
  assert tree_tables.idleness(_cells()) == (
      "Idle row-steps: 3% a cell, at most 5% (rsd_c(2-2) at T=0.5).")


def test_terminal_tables():
  cells = _cells()
  text = tree_tables.terminal(cells, tree_tables.best(cells, _POINTS), math.inf)
  tables, _ = text.split("\n\nIdle")
  lines = tables.splitlines()
  assert max(map(len, lines)) <= 80
  assert lines[0].startswith("Fixed draft length, temperature 0.5")
  # The point where a method has no tree has a dash.
  row = next(line for line in lines if line.startswith("  RSD-C"))
  assert row.split() == ["RSD-C", "2.86±0.14", "-"]
  assert text.count("Fixed target budget") == 2


def test_plain_table_is_aligned():
  assert text_tables.plain_table([["a", "bb"], ["long", "1"]]) == (
      "a     bb\n--------\nlong   1")


def _summary(folder, note="", settings=()):
  cells = _cells()
  tree_tables.write(folder, cells, tree_tables.best(cells, _POINTS), math.inf,
                    note, dict(settings))
  return (folder / "summary.md").read_text()


def test_summary(tmp_path):
  text = _summary(tmp_path)
  assert text.startswith("# ")
  for heading in ("Fixed draft length, temperature 0.5",
                  "Fixed target budget, temperature 1",
                  "All trees, temperature 1"):
    assert f"## {heading}\n" in text
  assert "| 2 | RSD-C | 2.86 [2.73, 3.00] | rsd_c(2-2) |" in text
  # Every tree once a temperature, plain decoding included.
  checks = text[text.index("## All trees"):]
  assert checks.count("| autoregressive | 0 | 0 |") == 2
  assert checks.count("| rsd_c(4-1) | 6 | 2 |") == 2
  columns = {line.count("|") for line in checks.splitlines()
             if line.startswith("|")}
  assert len(columns) == 1
  assert "nan" not in text and "None" not in text


def test_summaries_begin_with_models_device_versions_and_settings(
    tmp_path, monkeypatch):
  monkeypatch.setattr(results_store, "environment", lambda: {
      "python": "3.11.9", "platform": "Linux", "cpus": 2, "kernels": "xla",
      "devices": ["TPU v5"] * 4, "versions": {"jax": "0.10", "flax": "0.12"}})
  assert _summary(tmp_path, "Note.", {
      "target": "big", "draft": "small", "dtype": "", "dtypes": ["float32"] * 2,
      "weights": "int8", "models": "ab12", "batch": 8, "mesh": "data:4",
      "temperatures": [0.0, 1.0], "trees": {"length": {}}, "seed": 0}
                  ).startswith("""\
# Draft trees

- Models: target=big, draft=small, dtypes=float32/float32, weights=int8.
- Device: 4 x TPU v5; 2 CPU cores, xla kernels; Linux.
- Versions: Python 3.11.9, jax 0.10, flax 0.12.
- Settings: batch=8, mesh=data:4, temperatures=0.0/1.0, seed=0.

Figures with""")


def test_report_has_figures_of_texts(tmp_path):
  record = _record("autoregressive", 0.5)
  record["metrics"]["bleu"] = [12.3, 10.0, 14.0]
  cells = record_figures.long_records([record], None, 0.1)
  tree_tables.write(tmp_path, cells, [], math.inf, "Task x: 2 were left out.",
                    {})
  text = (tmp_path / "summary.md").read_text()
  assert "| compile, s | BLEU |" in text and "12.30 [10.00, 14.00] |" in text
  assert "\n\nTask x: 2 were left out.\n\n" in text
  assert "2 were left out" in tree_tables.terminal(
      cells, [], math.inf, "Task x: 2 were left out.")
