"""Tables as text."""

from experiments.app import text_tables


def test_latex_tables_escape_what_latex_reads():
  text = text_tables.latex_table("50 % of a_b", [
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
