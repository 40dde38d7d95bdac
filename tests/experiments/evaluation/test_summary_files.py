"""Results as files for other programs."""

import csv

from experiments.evaluation import result_rows
from experiments.evaluation import summary_files
from support import tiny_records

ROWS = result_rows.rows(tiny_records.records(), tiny_records.CATEGORIES, [0.0],
                        tiny_records.RATIO)


def test_csv_has_a_line_for_each_row(tmp_path):
  path = tmp_path / "summary.csv"
  summary_files.write_csv(path, ROWS, {"target": "big", "device": "cpu, 2"})
  with open(path, encoding="utf-8", newline="") as f:
    lines = list(csv.DictReader(f))
  assert len(lines) == 9
  chain = lines[5]
  assert [chain[name] for name in (
      "method", "category", "prompts", "nodes", "depth", "against_plain",
      "block_efficiency", "acceptance_1", "acceptance_2", "target",
      "device")] == ["speculative(2)", "all", "3", "2", "2", "faster", "1.6",
                     "0.5", "0.4", "big", "cpu, 2"]
  for name in ("block_efficiency", "tokens_per_second", "speed_up", "mbsu",
               "acceptance_1"):
    low, value, high = (float(chain[name + end]) for end in ("_low", "",
                                                             "_high"))
    assert low <= value <= high
  # Plain decoding accepts nothing; one prompt has no interval.
  assert lines[0]["acceptance_1"] == lines[0]["speed_up_low"] == ""


def test_latex_begins_with_the_origin(tmp_path):
  path = tmp_path / "summary.tex"
  summary_files.write_latex(path, ROWS, "- Models: a.\n- Device: b.")
  text = path.read_text()
  assert text.startswith("% - Models: a.\n% - Device: b.\n% \\usepackage{"
                         "booktabs}\n\n\\begin{table}")
