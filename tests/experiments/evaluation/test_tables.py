"""Tests of `evaluation.tables` and the figures."""

import math

from matplotlib import colors
import numpy as np
from PIL import Image
import pytest

import decoding_jax as dj
from experiments.app import text_tables
from experiments.evaluation import figures
from experiments.evaluation import provenance
from experiments.evaluation import record_figures
from experiments.evaluation import results_store
from experiments.evaluation import tables

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


def _rows(temperatures=(0.5, 1.0), **log_probs):
  records = [_record(method, t, log_probs.get(method.split("(")[0], -60.0))
             for method in _DEPTHS for t in temperatures]
  return tables.rows(records, _POINTS, temperatures)


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


@pytest.mark.parametrize("method, label", [
    (dj.methods.prompt_lookup(4), "prompt lookup"),
    (dj.methods.suffix(4, 2), "suffix decoding"),
    (dj.methods.token_recycling((2,), 2), "Token Recycling"),
    (dj.methods.rsd_s(3, 2, verification="traversal"), "RSD-S, traversal"),
    (dj.methods.rsd_s(3, 2), "RSD-S")], ids=lambda x: getattr(x, "name", ""))
def test_labels_have_no_sizes(method, label):
  records = [{**_record("autoregressive", 1.0), "method": name}
             for name in ("autoregressive", method.name)]
  rows = tables.rows(records, {("length", 2): [method.name]}, [1.0])
  assert rows[1]["label"] == label


def test_figures_of_one_batch_have_no_interval_of_speed():
  record = {**_record("rsd_c(2-2)", 1.0), "seconds": [2.0], "tokens": [120]}
  assert record_figures.of_record(record, 0.1)["token_rate"] == [60, None, None]


def test_a_cell_of_two_experiments_is_reported_in_both():
  rows = [row for row in _rows() if row["method"] == "rsd_c(2-2)"]
  assert [(r["experiment"], r["point"], r["temperature"]) for r in rows] == [
      ("length", 2, 0.5), ("budget", 6, 0.5),
      ("length", 2, 1.0), ("budget", 6, 1.0)]


def test_best_is_chosen_by_its_metric():
  rows = _rows()
  for row in rows:
    if row["method"] == "rsd_c(4-1)":
      row["metrics"] = {**row["metrics"], "token_rate_ratio": [9.0, 8.0, 10.0]}
  chosen = {metric: tables.best(rows, metric)["length", 1.0]["RSD-C"][2]
            for metric in ("block_efficiency", "token_rate_ratio")}
  assert chosen["block_efficiency"]["method"] == "rsd_c(2-2)"
  assert chosen["token_rate_ratio"]["method"] == "rsd_c(4-1)"


def _of_prompts(rows, count):
  return [{**row, "emitted": [30] * count} for row in rows]


def test_sanity_agrees_when_nothing_differs():
  assert "agrees with" in tables.sanity(_of_prompts(_rows(), 16))


def test_sanity_tells_a_changed_distribution():
  line = tables.sanity(_of_prompts(_rows(rsd_c=-75.0), 16))
  assert "DIFFERS FROM" in line and "rsd_c" in line


@pytest.mark.parametrize("temperature, ties", [(0.0, True), (1.0, False)])
def test_sanity_at_temperature_0_speaks_of_ties(temperature, ties):
  rows = [{**row, "deviation": 9.0, "temperature": temperature}
          for row in _rows()]
  line = tables.sanity(_of_prompts(rows, 16))
  assert "DIFFERS FROM" in line and ("two tokens tie" in line) == ties


def test_sanity_is_no_false_alarm_for_few_prompts():
  """Some standard errors away by chance, where errors are so uncertain."""
  rows = [{**row, "deviation": 4.0} for row in _rows()]
  assert "DIFFERS FROM" in tables.sanity(_of_prompts(rows, 100))
  assert "agrees with" in tables.sanity(_of_prompts(rows, 10))


@pytest.mark.parametrize("deviation", [0.0, 6.0, 600.0])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_sanity_tells_nothing_where_nearly_all_would_be_allowed(
    count, deviation):
  rows = [{**row, "deviation": deviation} for row in _rows()]
  assert tables.sanity(_of_prompts(rows, count)) == (
      "Log-probability of the output: too few prompts to compare.")


def test_sanity_of_the_default_run():
  """Sixteen prompts, 112 cells."""
  row = next(row for row in _rows() if row["experiment"] == "length")
  rows = [{**row, "method": f"m{i}", "deviation": -2.8} for i in range(112)]
  line = tables.sanity(_of_prompts(rows, 16))
  assert "agrees with" in line and "(5.3 allowed)" in line


def test_sanity_forgives_rounding():
  rows = _rows(rsd_c=-60.0 - 1e-3)
  assert all(row["deviation"] == 0 for row in rows)


def test_sanity_of_one_prompt():
  rows = [{**row, "deviation": math.nan} for row in _rows()]
  assert "too few prompts" in tables.sanity(rows)


def test_idleness_names_the_worst():
  assert tables.idleness(_rows()) == (
      "Idle row-steps: 3% a cell, at most 5% (rsd_c(2-2) at T=0.5).")


def test_terminal_tables():
  text = tables.terminal(_rows())
  lines = text.splitlines()
  assert max(map(len, lines[:-1])) <= 80
  assert lines[0].startswith("Fixed draft length, temperature 0.5")
  # The point where a method has no tree stays empty.
  row = next(line for line in lines if line.startswith("  RSD-C"))
  assert row.split() == ["RSD-C", "2.86±0.14"]
  assert text.count("Fixed target budget") == 2


def test_plain_table_is_aligned():
  assert text_tables.plain_table([["a", "bb"], ["long", "1"]]) == (
      "a     bb\n--------\nlong   1")


def test_summary(tmp_path):
  tables.write(tmp_path / "summary.md", _rows())
  text = (tmp_path / "summary.md").read_text()
  assert text.startswith("# ")
  for heading in ("Fixed draft length, temperature 0.5",
                  "Fixed target budget, temperature 1",
                  "All trees, temperature 1"):
    assert f"## {heading}\n" in text
  assert "| 2 | RSD-C | 2.86 [2.73, 3.00] | rsd_c(2-2) |" in text
  # Every tree once a temperature, plain decoding included.
  assert text.count("| autoregressive | 0 | 0 |") == 2
  assert text.count("| rsd_c(4-1) | 6 | 2 |") == 2
  columns = {line.count("|") for line in text.split("## All trees")[1]
             .splitlines() if line.startswith("|")}
  assert len(columns) == 1
  assert "nan" not in text and "None" not in text


def test_summaries_begin_with_models_device_versions_and_settings(
    tmp_path, monkeypatch):
  monkeypatch.setattr(results_store, "environment", lambda: {
      "python": "3.11.9", "platform": "Linux", "cpus": 2, "kernels": "xla",
      "devices": ["TPU v5"] * 4, "versions": {"jax": "0.10", "flax": "0.12"}})
  about = provenance.markdown({
      "target": "big", "draft": "small", "dtype": "", "dtypes": ["float32"] * 2,
      "weights": "int8", "models": "ab12", "batch": 8, "mesh": "data:4",
      "temperatures": [0.0, 1.0], "trees": {"length": {}}, "seed": 0})
  tables.write(tmp_path / "summary.md", _rows(), "Note.", about)
  text = (tmp_path / "summary.md").read_text()
  assert text.startswith("""\
# Draft trees

- Models: target=big, draft=small, dtypes=float32/float32, weights=int8.
- Device: 4 x TPU v5; 2 CPU cores, xla kernels; Linux.
- Versions: Python 3.11.9, jax 0.10, flax 0.12.
- Settings: batch=8, mesh=data:4, temperatures=0.0/1.0, seed=0.

Figures with""")


def test_labels_tell_how_trees_are_verified():
  records = _rows()[:1]
  records += [{**records[0], "method": name} for name in (
      "sequoia(2/2,0/1,1)", "rsd_s(3x4, traversal)", "speculative(3, block)")]
  points = {("length", 3): [record["method"] for record in records[1:]]}
  found = tables.rows(records, points, [records[0]["temperature"]])
  assert [row["label"] for row in found[1:]] == [
      "sequoia", "RSD-S, traversal", "SD, block"]


def test_figures_are_written(tmp_path):
  rows = [{**row, "label": row["label"].replace("SD", "new method")}
          for row in _rows()]
  paths = figures.write(tmp_path, rows)
  assert [path.name for path in paths] == [
      f"{name}.{kind}" for name in ("block_efficiency", "mbsu",
                                    "token_rate_ratio")
      for kind in ("png", "pdf")]
  for path in paths:
    assert path.read_bytes().startswith(
        b"%PDF" if path.suffix == ".pdf" else b"\x89PNG")


def _series(ax):
  """The lines of a panel: dict from labels to (x, y, color)."""
  handles, labels = ax.get_legend_handles_labels()
  return {label: (handle.lines[0].get_xdata().tolist(),
                  handle.lines[0].get_ydata().tolist(),
                  handle.lines[0].get_color())
          for handle, label in zip(handles, labels)}


def test_trees_are_drawn_where_they_are():
  """At their depth or number of nodes, which may be less than the budget."""
  row = lambda experiment, point, label, nodes, value: {
      "experiment": experiment, "point": point, "label": label,
      "temperature": 1.0, "tree_nodes": nodes,
      "metrics": {"mbsu": [value, None, None]}}
  rows = [row("length", 2, "SD", 2, 1.5), row("length", 4, "SD", 4, 2.0),
          row("length", 2, "RSD-S", 9, 1.75),
          *(row("budget", n, "SD", 5, 2.5) for n in (8, 64)),
          *(row("budget", n, "new", n - 1, n / 8) for n in (64, 8))]
  fig = figures._draw(tables.best(rows, "mbsu"), "mbsu", "MBSU",
                      lambda *_: ("", ""))
  length, budget = map(_series, fig.axes)
  assert length["SD"][:2] == ([2, 4], [1.5, 2])
  assert length["RSD-S"][:2] == ([2], [1.75])
  assert budget["SD"][:2] == ([5], [2.5])
  assert budget["new"][:2] == ([7, 63], [1, 8])
  # A method has one colour in all panels, and the legend has all methods.
  assert length["SD"][2] == budget["SD"][2]
  assert len({x[2] for x in (*length.values(), *budget.values())}) == 3
  assert [x.get_text() for x in fig.legends[0].texts] == ["SD", "RSD-S", "new"]
  fig.draw_without_rendering()
  assert [x.get_text() for x in fig.axes[1].get_xticklabels()] == ["8", "64"]
  assert [x.get_text() for x in fig.axes[0].get_xticklabels()] == ["2", "4"]


def test_methods_have_colours_of_their_own():
  labels = ["SD", "RSD-S", *map(str, range(14))]
  assert len({color for color, _ in figures.styles(labels).values()}) == 16
  assert len(set(figures.styles([*map(str, range(100))]).values())) == 100


def test_colours_of_few_points_are_in_the_file(tmp_path):
  fig, ((ax,),) = figures.panels(1, 1)
  used = figures.styles([*map(str, range(16))])
  for x, (label, style) in enumerate(used.items()):
    figures.draw(ax, [x], [[1, 0.9, 1.1]], label, style)
  figures.save_png(fig, tmp_path / "a.png")
  image = Image.open(tmp_path / "a.png").convert("RGB")
  there = np.array([color for _, color in image.getcolors()])
  for color, _ in used.values():
    wanted = np.multiply(colors.to_rgb(color), 255)
    assert abs(there - wanted).max(axis=1).min() < 16, color
  assert [255] * 3 in there.tolist()


def test_numbers_of_a_logarithmic_axis_are_plain():
  fig, ((ax,),) = figures.panels(1, 1)
  ax.plot([0.9, 12], [1, 2])
  figures.log_axis(ax)
  fig.draw_without_rendering()
  low, high = ax.get_xlim()
  assert [x.get_text() for x in ax.get_xticklabels()
          if low <= x.get_position()[0] <= high] == ["1", "2", "5", "10"]
  assert not ax.get_xticklabels(minor=True)


def test_nothing_to_draw(tmp_path):
  assert figures.write(tmp_path, []) == []


def test_report_has_figures_of_texts(tmp_path):
  figures = {name: [1.0, None, None] for name in (
      "block_efficiency", "mbsu", "token_rate", "token_rate_ratio", "log_prob",
      "idle_share")}
  record = {"method": "autoregressive", "temperature": 0.5, "depth": 0,
            "tree_nodes": 0, "emitted": [3], "log_prob": [-1.0],
            "compile_seconds": 1.0, "metrics": {
                **figures, "acceptance_by_depth": [], "acceptance_by_rank": [],
                "bleu": [12.3, 10.0, 14.0]}}
  rows = tables.rows([record], {}, (0.5,))
  tables.write(tmp_path / "summary.md", rows, "Task x: 2 were left out.")
  text = (tmp_path / "summary.md").read_text()
  assert "| compile, s | BLEU |" in text and "12.30 [10.00, 14.00] |" in text
  assert "\n\nTask x: 2 were left out.\n\n" in text
  assert "2 were left out" in tables.terminal(rows, "Task x: 2 were left out.")
