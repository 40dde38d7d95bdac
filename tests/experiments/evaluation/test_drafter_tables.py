"""Tests of the tables and figure of several drafters."""

import pytest

from experiments.evaluation import drafter_tables
from experiments.evaluation import figures
from experiments.evaluation import record_figures
from experiments.evaluation import tree_tables

_POINTS = {("budget", 8): ["opt_tree(8, 6x4)", "rsd_s(2x4)", "rsd_s(4x2)",
                           "rsd_s(2x4, traversal)"],
           ("budget", 16): ["opt_tree(16, 8x4)", "rsd_s(4x4)"],
           ("length", 4): ["rsd_s(2x4)"]}
_NAMES = ["autoregressive", *dict.fromkeys(
    name for names in _POINTS.values() for name in names)]


def _record(name, temperature, calls, forwards):
  """Eight prompts of 24 tokens in about so many calls."""
  calls = [calls + i % 2 for i in range(8)]
  record = {
      "method": name, "temperature": temperature, "depth": 4, "tree_nodes": 8,
      "emitted": [24] * 8, "target_calls": calls,
      "draft_calls": [forwards * x for x in calls], "log_prob": [-30.0] * 8,
      "accepted_by_depth": [[1, 1]] * 8, "seconds": [1.0], "tokens": [192],
      "row_steps": [sum(calls)], "baseline_rate": 1.0, "compile_seconds": 1.0}
  return {**record, "metrics": record_figures.of_record(record, 0.1)}


def _trees(best_first, forwards=1, names=_NAMES, temperatures=(0.0, 1.0)):
  """Trees of a drafter; sampled ones need 10 calls a prompt, less some."""
  calls = lambda name: best_first if "opt" in name else 10 - ("trav" in name)
  records = [_record(name, t, calls(name), forwards) for t in temperatures
             for name in names]
  return tree_tables.best(record_figures.long_records(records, None, 0.1),
                          _POINTS)


def _compared(**trees):
  return drafter_tables.compared(trees)


def test_answers_are_of_the_better_sampled_tree():
  """Of 8 nodes 9.5 calls against 12.5, of 16 nodes 10.5 against 12.5."""
  lines = drafter_tables.answers(_compared(block=_trees(12)))
  assert [line.split(":")[0] for line in lines] == ["T = 0", "T = 1"]
  assert "block yes, +25.2 % [" in lines[1]
  assert "(+31.6 at 8, +19.0 at 16 nodes)" in lines[1]


@pytest.mark.parametrize("calls, verdict", [(7, "no"), (30, "yes")])
def test_verdicts(calls, verdict):
  line = drafter_tables.answers(_compared(block=_trees(calls)))[0]
  assert f"block {verdict}, " in line


def test_what_is_within_the_interval_is_undecided():
  trees = _trees(10, names=_NAMES[:3], temperatures=(1.0,))
  for r in trees:
    if "opt" in r["method"]:
      r["record"]["target_calls"] = r["record"]["target_calls"][::-1]
  line, = drafter_tables.answers(_compared(block=trees))
  assert "block undecided, +0.0 % [-" in line


def test_a_drafter_of_several_forwards_is_in_the_tables_alone():
  small, block = _trees(12, forwards=4), _trees(12)
  assert not drafter_tables.answers(_compared(small=small))
  assert "Does" not in drafter_tables.terminal(_compared(small=small))
  trees = _compared(small=small, block=block)
  assert "small" not in "".join(drafter_tables.answers(trees))
  text = drafter_tables.terminal(trees)
  assert "\nDoes sampling without replacement" in text
  lines = [line.split()[:2] for line in text.splitlines()]
  assert lines.count(["small", "best-first"]) == 2
  assert lines.count(["block", "best-first"]) == 2


def test_summary(tmp_path):
  """A drafter without the deeper trees has empty places."""
  few = _trees(12, names=_NAMES[:3])
  drafter_tables.write(tmp_path / "summary.md",
                       _compared(few=few, all=_trees(12)), "- About.")
  text = (tmp_path / "summary.md").read_text()
  assert "- About." in text and "- T = 1: few yes" in text
  assert "| drafter | method | 8 | 16 |" in text
  assert "| all | RSD-S, traversal | 2.53 [" in text
  line = next(x for x in text.splitlines() if x.startswith("| few | best"))
  assert line.endswith("| - |")
  assert text.count("| gain of RSD-S | 8 | 16 |") == 2
  assert "nan" not in text and "None" not in text


def test_figures_are_written(tmp_path):
  png, pdf = figures.write_drafters(tmp_path, _compared(
      a=_trees(12), b=_trees(9)))
  assert png.read_bytes().startswith(b"\x89PNG")
  assert png.stat().st_size < 60_000
  assert pdf.read_bytes().startswith(b"%PDF")
  assert figures.write_drafters(tmp_path, _compared(a=[])) == []
