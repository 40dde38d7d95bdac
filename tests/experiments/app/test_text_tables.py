"""Tables as text."""

from experiments.app import text_tables


def test_long_records_and_their_pivot():
  records = [
      r for method, rate in (("a", [10.0, 9.0, 12.0]), ("b", None))
      for r in text_tables.long_records(
          {"rate": rate, "accepted": [[0.5], [0.25, None, None]],
           "never": [], "verdict": "fast"}, method=method)]
  assert len(records) == 8
  assert records[2] == {"method": "a", "metric": "accepted", "value": 0.25,
                        "low": None, "high": None, "position": 2}
  titles = {"rate": "tokens/s", "accepted": "by position", "never": "never",
            "verdict": "than plain"}
  assert text_tables.pivot(records, {"method": "tree"}, titles=titles,
                           specs={"rate": ".0f"}) == [
      ["tree", *titles.values()],
      ["a", "10 [9, 12]", "0.50 0.25", "-", "fast"],
      ["b", "-", "0.50 0.25", "-", "fast"]]
  # Columns of any key, the least first.
  assert text_tables.pivot(
      text_tables.select(records, metric="accepted"), {"metric": ""},
      "position", form=text_tables.plus_minus)[0] == ["", "1", "2"]


def test_latex_tables_escape_what_latex_reads():
  text = text_tables.latex("50 % of a_b", [
      ["method", "x^2"], ["a_b(2-1)", "1 & 2 ~ {3} \\ #$"]])
  assert text == r"""\begin{table}
\caption{50 \% of a\_b}
\begin{tabular}{lr}
\toprule
method & x\textasciicircum{}2 \\
\midrule
a\_b(2-1) & 1 \& 2 \textasciitilde{} \{3\} \textbackslash{} \#\$ \\
\bottomrule
\end{tabular}
\end{table}"""
