"""Tables as text, for terminals, Markdown and LaTeX."""

# Characters that LaTeX reads as commands.
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", **{x: f"\\{x}" for x in "&%$#_{}"}})


def plain_table(lines):
  """Formats aligned columns, the first to the left, with a ruled-off head."""
  widths = [max(map(len, column)) for column in zip(*lines)]
  text = ["  ".join([line[0].ljust(widths[0]),
                     *(x.rjust(w) for x, w in zip(line[1:], widths[1:]))])
          for line in lines]
  return "\n".join([text[0], "-" * len(text[0]), *text[1:]])


def markdown_table(lines):
  """Formats a Markdown table; the first line is its head."""
  text = ["| " + " | ".join(line) + " |" for line in lines]
  return "\n".join([text[0], "|---" * len(lines[0]) + "|", *text[1:]])


def latex_table(title, lines):
  """Formats a table of the LaTeX package booktabs.

  Args:
    title: its caption.
    lines: of text; the first one is its head, the first column to the left.
  """
  text = [" & ".join(x.translate(_LATEX) for x in line) + r" \\"
          for line in lines]
  return "\n".join([
      r"\begin{table}", rf"\caption{{{title.translate(_LATEX)}}}",
      r"\begin{tabular}{l" + "r" * (len(lines[0]) - 1) + "}", r"\toprule",
      text[0], r"\midrule", *text[1:], r"\bottomrule", r"\end{tabular}",
      r"\end{table}"])
