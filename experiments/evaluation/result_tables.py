"""Tables of results as papers print them: by method, and by category."""

from experiments.app import text_tables
from experiments.evaluation import result_rows
from experiments.evaluation import tables

FIGURES = {
    "block_efficiency": "block efficiency (tau)",
    "acceptance_by_depth": "acceptance rate by position",
    "token_rate": "tokens/s",
    "token_rate_ratio": "speed-up",
    "mbsu": "MBSU"}
_DIGITS = {"token_rate": 1}
# Figures of which the terminal shows a table by category.
_SHOWN = ("block_efficiency", "token_rate_ratio")


def overall(rows) -> dict:
  """Makes a table a temperature: all figures of each method on all prompts.

  Args:
    rows: of `result_rows.rows`.

  Returns:
    dict from titles to lines of text, the head first.
  """
  head = ["method", "nodes", "depth", *FIGURES.values(), "than plain decoding"]
  names = result_rows.short_names(rows)
  return {f"Results, temperature {temperature:g}": [head, *(
      [names[row.method], str(row.nodes), str(row.depth),
       *(_cell(row, figure) for figure in FIGURES),
       result_rows.against_plain(row) or "-"]
      for row in rows if row.temperature == temperature
      and row.category == result_rows.ALL)]
          for temperature in dict.fromkeys(row.temperature for row in rows)}


def by_category(rows, figures=tuple(FIGURES)) -> dict:
  """Makes a table a figure and temperature: methods by category of prompts.

  Args:
    rows: of `result_rows.rows`.
    figures: names in `FIGURES`.

  Returns:
    As `overall`; no tables without categories, and none of a figure that was
    not measured.
  """
  if all(row.category == result_rows.ALL for row in rows):
    return {}
  return {f"By category, temperature {temperature:g}: {FIGURES[figure]}":
          _lines(figure, chosen)
          for temperature in dict.fromkeys(row.temperature for row in rows)
          for figure in figures for chosen in [
              [row for row in rows if row.temperature == temperature]]
          if any(figure in row.figures for row in chosen
                 if row.category != result_rows.ALL)}


def terminal(rows) -> str:
  """Formats the tables by category that a terminal has room for."""
  return "\n\n".join(f"{title}\n{text_tables.plain_table(lines)}"
                     for title, lines in by_category(rows, _SHOWN).items())


def markdown(rows) -> str:
  """Formats all tables in Markdown."""
  return "\n\n".join(
      f"## {title}\n\n{text_tables.markdown_table(lines)}"
      for title, lines in {**overall(rows), **by_category(rows)}.items())


def latex(rows) -> str:
  """Formats all tables in LaTeX."""
  return "\n\n".join(
      text_tables.latex_table(title, lines)
      for title, lines in {**overall(rows), **by_category(rows)}.items())


def _lines(figure, rows):
  """Returns lines of text: a head with the prompts of each category, methods.
  """
  methods, names = {}, result_rows.short_names(rows)
  for row in rows:
    methods.setdefault(names[row.method], []).append(row)
  head = [f"{row.category} ({row.prompts})"
          for row in next(iter(methods.values()))]
  return [["method (prompts)", *head], *(
      [method, *(_cell(row, figure) for row in parts)]
      for method, parts in methods.items())]


def _cell(row, figure):
  """Formats a figure with its interval; positions one after the other."""
  values = row.figures.get(figure)
  if not values:
    return "-"
  digits = _DIGITS.get(figure, 2)
  if not isinstance(values[0], list):
    return tables.interval(values, digits)
  return " ".join(tables.interval(x, digits) for x in values)
