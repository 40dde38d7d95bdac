"""Tables of results."""

from experiments.evaluation import result_rows
from experiments.evaluation import result_tables
from support import tiny_records


def _rows(records=None, categories=tuple(tiny_records.CATEGORIES)):
  return result_rows.rows(records or tiny_records.records(),
                          categories and list(categories), [0.0],
                          tiny_records.RATIO)


def test_all_figures_of_a_method_are_in_a_line():
  (title, lines), = result_tables.overall(_rows()).items()
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
  found = result_tables.by_category(_rows())
  assert list(found) == [f"By category, temperature 0: {name}"
                         for name in result_tables.FIGURES.values()]
  lines = found["By category, temperature 0: speed-up"]
  assert lines[0] == ["method (prompts)", "qa (1)", "rag (2)", "all (3)"]
  assert lines[2] == ["speculative(2)", "1.67", "1.54 [1.25, 2.00]",
                      "1.58 [1.25, 2.00]"]
  text = result_tables.terminal(_rows())
  assert ": speed-up\n" in text and "MBSU" not in text


def test_no_tables_by_category_of_prompts_without():
  rows = _rows(categories=None)
  assert not result_tables.by_category(rows)
  assert not result_tables.terminal(rows)
  assert result_tables.markdown(rows).startswith("## Results, temperature 0")


def test_rates_that_were_not_measured_by_category():
  records = [{name: x for name, x in record.items()
              if not name.startswith(("prompt_", "plain_"))}
             for record in tiny_records.records()]
  found = result_tables.by_category(_rows(records))
  assert [title.partition(": ")[2] for title in found] == [
      "block efficiency (tau)", "acceptance rate by position", "MBSU"]


def test_markdown_and_latex_have_the_same_tables():
  rows = _rows()
  markdown, latex = result_tables.markdown(rows), result_tables.latex(rows)
  assert markdown.count("\n## ") + 1 == latex.count(r"\caption") == 6
  assert r"rsd\_c(2-1) & 4 & 2 & " in latex
  for name in ("toprule", "midrule", "bottomrule"):
    assert latex.count(name) == 6
