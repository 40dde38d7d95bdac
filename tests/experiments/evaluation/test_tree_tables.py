"""Tables of the best trees, and what checks a run."""

import numpy as np
import pytest

from experiments.evaluation import tree_figures, tree_tables
from experiments.scoring import text_metrics

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
  return {**record, "metrics": tree_figures.of_record(record, 0.1)}


def _cells(temperatures=(0.5, 1.0), **log_probs):
  records = [_record(method, t, log_probs.get(method.split("(")[0], -60.0))
             for t in temperatures for method in _DEPTHS]
  return tree_figures.long_records(records, None, 0.1)


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
  record = {**_record("rsd_c(2-2)", 1.0), "draft_calls": [0] * 4}
  got = tree_figures.of_record(record, 0.1)
  assert got["mbsu"] == got["block_efficiency"]


def test_a_cell_of_two_experiments_is_reported_in_both():
  results = [r for r in tree_tables.best(_cells(), _POINTS)
             if (r["label"], r["metric"]) == ("RSD-C", "mbsu")]
  assert {r["method"] for r in results} == {"rsd_c(2-2)"}
  assert [(r["experiment"], r["point"], r["temperature"]) for r in results] == [
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


@pytest.mark.parametrize("log_prob, distance", [(-75.0, "-"), (-60.001, "+0")])
def test_the_distance_from_plain_decoding(log_prob, distance):
  cells = _cells(rsd_c=log_prob)
  # Four prompts are too few to tell.
  assert "from plain decoding" not in tree_tables.terminal(cells, [])
  cells = [{**r, "prompts": 8} for r in cells]
  text = tree_tables.terminal(cells, [])
  assert f"at most {distance}" in text and "of 8 cells" in text
  if log_prob < -70:
    assert "(rsd_c(" in text
    assert all(abs(r["value"]) > 5 for r in cells if r["metric"] == "deviation"
               and r["label"] == "RSD-C")


def test_each_figure_of_texts_is_reported(tmp_path):
  record = _record("autoregressive", 0.5)
  record["metrics"] |= dict.fromkeys(text_metrics.CORPUS, [12.3, 10.0, 14.0])
  tree_tables.write(tmp_path, tree_figures.long_records([record], None, 0.1),
                    [], "", {})
  text = (tmp_path / "summary.md").read_text()
  assert text.count("12.30 [10.00, 14.00] |") == len(text_metrics.CORPUS)


def test_drafters_are_compared(tmp_path):
  cells = _cells()
  points = {("budget", 6): ["rsd_c(2-2)"], ("budget", 8): ["speculative(3)"]}
  trees = {"few": tree_tables.best(cells, {("budget", 6): ["rsd_c(2-2)"]}),
           "all": tree_tables.best(cells, points)}
  text = tree_tables.write_joined(tmp_path, "drafter", trees, "head")
  assert ["few", "1", "RSD-C", "2.86±0.14", "-"] in map(str.split,
                                                        text.splitlines())
  summary = (tmp_path / "summary.md").read_text()
  assert summary.startswith("# By drafter\n\nhead\n")
  assert "| drafter | T | method | 6 | 8 |" in summary
  assert "| all | 0.5 | SD | - | 2.4" in summary
  for kind in ("png", "pdf"):
    assert (tmp_path / f"mbsu.{kind}").stat().st_size


def test_methods_are_put_in_order_with_paired_gains():
  records = [_record(method, 1.0) for method in _DEPTHS]
  # Prompts differ much, and by the same share for both methods.
  for record, calls in ((records[1], [10, 20, 30, 40]),
                        (records[3], [8, 16, 24, 32])):
    record["target_calls"] = calls
    record["draft_calls"] = [2 * x for x in calls]
    record["metrics"] = tree_figures.of_record(record, 0.1)
  trees = tree_tables.best(tree_figures.long_records(records, None, 0.1), {
      ("length", 2): ["speculative(2)", "rsd_c(2-2)"],
      ("budget", 6): ["speculative(3)", "rsd_c(4-1)"]})
  # By MBSU 120 / 50 / 1.3 is 7.1 % more than 120 / 58 / 1.2.
  length, budget = tree_tables.orders(records, trees)
  assert length == (
      "draft length 2, temperature 1: RSD-C > SD by 25.0 [25.0, 25.0]")
  assert budget.startswith(
      "nodes scored a target call 6, temperature 1: SD > RSD-C by 7.1 [")


def test_of_one_prompt_a_gain_has_no_interval():
  one = {"emitted": [30], "target_calls": [10],
         "metrics": {"block_efficiency": [3.0, None, None]}}
  other = {**one, "target_calls": [15],
           "metrics": {"block_efficiency": [2.0, None, None]}}
  assert tree_figures.gain(one, other, "block_efficiency") == [50, None, None]


def test_a_verdict_on_published_figures():
  near = 120 / 42
  assert tree_tables.verdict(
      _cells((0.6,)), {"rsd_c(2-2)": 1.04 * near, "unmeasured": 2.0}, 0.05) == (
          "Published block efficiencies: 1 of 1 hit within 5%.")
  assert tree_tables.verdict(
      _cells((0.6,)), {"rsd_c(2-2)": near, "rsd_c(4-1)": 3.0}, 0.05) == (
          "Published block efficiencies: 1 of 2 hit within 5%; rsd_c(4-1) "
          f"{120 / 58:.3f}, not 3.000.")
