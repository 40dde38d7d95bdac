"""Tables of results and sentences about speed."""

import csv
import math

from experiments.evaluation import tree_tables
from support import tiny_records


def test_all_figures_of_a_method_are_in_a_line():
  (title, lines), = tree_tables.results(tiny_records.cells())
  assert title == "Results, temperature 0"
  assert lines[0] == [
      "method", "nodes", "depth", "block efficiency (tau)",
      "acceptance rate by position", "tokens/s", "speed-up", "MBSU",
      "than plain decoding"]
  plain, chain, tree = lines[1:]
  assert plain[0] == "autoregressive" and plain[4] == "-" == plain[-1]
  assert plain[6].startswith("1.00 [0.9")
  assert chain[:3] == ["speculative(2)", "2", "2"]
  assert chain[3].startswith("1.60 [1.")
  assert chain[4].startswith("0.50 [") and "] 0.40 [" in chain[4]
  assert chain[5].startswith("8.4 [")
  assert chain[6].startswith("1.58 [1.25, 2.00]") and chain[-1] == "faster"
  assert tree[6].startswith("0.63 [") and tree[-1] == "slower"


def test_tables_by_category():
  found = dict(tree_tables.by_category(tiny_records.cells()))
  assert list(found) == [f"By category, temperature 0: {name}"
                         for name in tree_tables.RESULTS.values()]
  lines = found["By category, temperature 0: speed-up"]
  assert lines[0] == ["method (prompts)", "qa (1)", "rag (2)", "all (3)"]
  assert lines[2] == ["speculative(2)", "1.67", "1.54 [1.25, 2.00]",
                      "1.58 [1.25, 2.00]"]
  text = tree_tables.terminal(tiny_records.cells(), [], math.inf)
  assert ": speed-up\n" in text and "MBSU" not in text


def test_no_tables_by_category_of_prompts_without():
  assert not tree_tables.by_category(tiny_records.cells(categories=None))


def test_rates_that_were_not_measured_by_category():
  records = [{name: x for name, x in record.items()
              if not name.startswith(("prompt_", "plain_"))}
             for record in tiny_records.records()]
  found = tree_tables.by_category(tiny_records.cells(records))
  assert [title.partition(": ")[2] for title, _ in found] == [
      "block efficiency (tau)", "acceptance rate by position", "MBSU"]


def test_files_of_results(tmp_path):
  """Markdown and LaTeX have the same tables, CSV the figures in full."""
  tree_tables.write(tmp_path, tiny_records.cells(), [], math.inf, "", {
      "target": "big, one"})
  markdown, latex = ((tmp_path / f"summary.{x}").read_text() for x in (
      "md", "tex"))
  # One table more: of checks.
  assert markdown.count("\n## ") == latex.count(r"\caption") + 1 == 7
  assert r"rsd\_c(2-1) & 4 & 2 & " in latex
  for name in ("toprule", "midrule", "bottomrule"):
    assert latex.count(name) == 6
  assert latex.startswith("% - Models: target=big, one.\n% - Device: ")
  assert "\n% \\usepackage{booktabs}\n\n\\begin{table}" in latex

  with open(tmp_path / "summary.csv", encoding="utf-8", newline="") as f:
    lines = list(csv.DictReader(f))
  assert len(lines) == 9
  chain = lines[5]
  assert [chain[name] for name in (
      "method", "category", "prompts", "nodes", "depth", "against_plain",
      "block_efficiency", "acceptance_1", "acceptance_2", "target",
      )] == ["speculative(2)", "all", "3", "2", "2", "faster", "1.6",
             "0.5", "0.4", "big, one"]
  for name in ("block_efficiency", "tokens_per_second", "speed_up", "mbsu",
               "acceptance_1"):
    low, value, high = (float(chain[name + end]) for end in ("_low", "",
                                                             "_high"))
    assert low <= value <= high
  # Plain decoding accepts nothing; one prompt has no interval.
  assert lines[0]["acceptance_1"] == lines[0]["speed_up_low"] == ""


def _speeds(*records, parameters=math.inf):
  """Sentences about plain decoding and others; those of `tiny_records`."""
  plain, *others = tiny_records.records()
  cells = tiny_records.cells([plain, *(records or others)], None)
  return tree_tables.speeds(cells, parameters)


def test_the_fastest_and_the_slower_ones():
  assert _speeds() == [
      "Temperature 0: speculative(2) is the fastest, at 1.58 [1.25, 2.00] "
      "times the rate of plain decoding (8 tokens/s). Slower than plain "
      "decoding: rsd_c(2-1) (0.63)."]


def test_where_nothing_is_faster_it_is_said():
  line, = _speeds(tiny_records.record("rsd_s(2x2)", [1.1] * 3))
  assert line.startswith("Temperature 0: no method is measurably faster than "
                         "plain decoding; rsd_s(2x2) is the fastest, at 0.91")
  line, = _speeds(tiny_records.record("rsd_s(2x2)", [0.8, 1.3, 0.8]))
  assert "no method is measurably faster" in line and "Slower" not in line


def test_many_slower_methods_are_counted():
  many = [tiny_records.record(f"rsd_s({n}x2)", [n] * 3) for n in range(2, 10)]
  line, = _speeds(*many)
  assert line.endswith("Slower than plain decoding: 8 of 8 methods, down to "
                       "rsd_s(9x2) (0.11).")


def test_each_temperature_has_a_line():
  warm = [tiny_records.record(name, [0.5] * 3, temperature=1.0)
          for name in ("autoregressive", "speculative(2)")]
  assert [line[:14] for line in _speeds(
      *tiny_records.records()[1:], *warm)] == ["Temperature 0:",
                                               "Temperature 1:"]
  assert not _speeds(tiny_records.records()[0])


def test_why_trees_are_slow():
  line = _speeds(parameters=3.2e6)[-1]
  assert "3.2 M parameters" in line and "experiments.benchmark" in line
  # Large targets, fast trees and chains have other reasons, or need none.
  assert len(_speeds(parameters=135e6)) == 1
  assert len(_speeds(tiny_records.records()[1], parameters=3.2e6)) == 1
