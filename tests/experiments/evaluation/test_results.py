"""Tables and files of results."""

import csv

from experiments.evaluation import tree_tables
from support import tiny_records


def test_all_figures_of_a_method_are_in_a_line(tmp_path):
  tree_tables.write(tmp_path, tiny_records.cells(), [], "", {})
  text = (tmp_path / "summary.md").read_text()
  table = text[text.index("## Results, temperature 0"):].splitlines()
  lines = [[x.strip() for x in line.split("|")[1:-1]] for line in table[2:7]]
  assert lines[0] == [
      "method", "nodes", "depth", "block efficiency (tau)",
      "acceptance rate by position", "tokens/s", "plain tokens/s", "speed-up",
      "MBSU"]
  plain, chain, tree = lines[2:]
  assert plain[0] == "autoregressive" and plain[4] == "-"
  assert plain[7].startswith("1.00 [0.9")
  assert chain[:3] == ["speculative(2)", "2", "2"]
  assert chain[3].startswith("1.60 [1.")
  assert chain[4].startswith("0.50 [") and "] 0.40 [" in chain[4]
  # A speed-up stands next to both of its rates.
  assert chain[5].startswith("8.4 [") and chain[6] == "5.3"
  assert chain[7].startswith("1.58 [1.25, 2.00]")
  assert tree[7].startswith("0.63 [")


def test_tables_by_category():
  results = dict(tree_tables.by_category(tiny_records.cells()))
  assert list(results) == [f"By category, temperature 0: {name}"
                           for metric, name in tree_tables.RESULTS.items()
                           if metric != "mean_accepted"]
  lines = results["By category, temperature 0: speed-up"]
  assert lines[0] == ["method (prompts)", "qa (1)", "rag (2)", "all (3)"]
  assert lines[2] == ["speculative(2)", "1.67", "1.54 [1.25, 2.00]",
                      "1.58 [1.25, 2.00]"]
  text = tree_tables.terminal(tiny_records.cells(), [])
  assert ": speed-up\n" in text and "MBSU" not in text


def test_no_tables_by_category_of_prompts_without():
  assert not tree_tables.by_category(tiny_records.cells(categories=None))


def test_rates_that_were_not_measured_by_category():
  records = [{name: x for name, x in record.items()
              if not name.startswith(("prompt_", "plain_"))}
             for record in tiny_records.records()]
  result = tree_tables.by_category(tiny_records.cells(records))
  assert [title.partition(": ")[2] for title, _ in result] == [
      "block efficiency (tau)", "acceptance rate by position", "MBSU"]


def test_files_of_results(tmp_path):
  """Markdown and LaTeX have the same tables, CSV the figures in full."""
  tree_tables.write(tmp_path, tiny_records.cells(), [], "", {
      "target": "big, one"})
  markdown, latex = ((tmp_path / f"summary.{x}").read_text() for x in (
      "md", "tex"))
  # One table more: of checks.
  assert markdown.count("\n## ") == latex.count(r"\caption") + 1 == 8
  assert r"rsd\_c(2-1) & 4 & 2 & " in latex
  for name in ("toprule", "midrule", "bottomrule"):
    assert latex.count(name) == 7
  assert latex.startswith("% - Models: target=big, one.\n% - Device: ")
  assert "\n% \\usepackage{booktabs}\n\n\\begin{table}" in latex

  with open(tmp_path / "summary.csv", encoding="utf-8", newline="") as f:
    lines = list(csv.DictReader(f))
  assert len(lines) == 9
  chain = lines[5]
  assert [chain[name] for name in (
      "method", "category", "prompts", "nodes", "depth", "block_efficiency",
      "acceptance_1", "acceptance_2", "target")] == [
          "speculative(2)", "all", "3", "2", "2", "1.6", "0.5", "0.4",
          "big, one"]
  for name in ("block_efficiency", "tokens_per_second", "speed_up", "mbsu",
               "acceptance_1"):
    low, value, high = (float(chain[name + end]) for end in ("_low", "",
                                                             "_high"))
    assert low <= value <= high
  # Plain decoding accepts nothing; one prompt has no interval.
  assert lines[0]["acceptance_1"] == lines[0]["speed_up_low"] == ""
