"""Summary of an experiment: Markdown, CSV, LaTeX and figures."""

import csv

from experiments.evaluation import category_figure
from experiments.evaluation import figures
from experiments.evaluation import provenance
from experiments.evaluation import result_rows
from experiments.evaluation import result_tables
from experiments.evaluation import tables

NAMES = "summary.md", "summary.csv", "summary.tex", "*.png", "*.pdf"
_NAMES = {"token_rate": "tokens_per_second", "token_rate_ratio": "speed_up"}


def write(folder, rows, results, *, notes, settings) -> None:
  """Writes the files of `NAMES`.

  Args:
    folder: Path to write to.
    rows: of `tables.rows`.
    results: of `result_rows.rows`.
    notes: paragraphs about prompts and speeds.
    settings: of the run, see `provenance`.
  """
  about = provenance.markdown(settings)
  tables.write(folder / "summary.md", rows, notes, about,
               result_tables.markdown(results))
  write_csv(folder / "summary.csv", results, provenance.fields(settings))
  write_latex(folder / "summary.tex", results, about)
  figures.write(folder, rows)
  category_figure.write(folder, results)


def write_csv(path, rows, origin) -> None:
  """Writes a line a method, temperature and category, figures in full.

  Args:
    path: file.
    rows: of `result_rows.rows`.
    origin: dict of what all lines have, of `provenance.fields`.
  """
  found = [{**_line(row), **origin} for row in rows]
  # Acceptance has as many columns as the deepest tree has levels.
  names = list(dict.fromkeys(
      name for line in sorted(found, key=len, reverse=True) for name in line
      if name not in origin)) + list(origin)
  with open(path, "w", encoding="utf-8", newline="") as f:
    writer = csv.DictWriter(f, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)


def write_latex(path, rows, about) -> None:
  """Writes all tables for the LaTeX package booktabs.

  Args:
    path: file.
    rows: of `result_rows.rows`.
    about: of `provenance.markdown`, in comments on top.
  """
  comment = "".join(f"% {line}\n" for line in about.splitlines())
  path.write_text(f"{comment}% \\usepackage{{booktabs}}\n\n"
                  f"{result_tables.latex(rows)}\n", encoding="utf-8")


def _line(row):
  """Returns the columns of a row, by name."""
  found = {"temperature": row.temperature, "method": row.method,
           "category": row.category, "prompts": row.prompts,
           "nodes": row.nodes, "depth": row.depth,
           "against_plain": result_rows.against_plain(row)}
  for figure in result_tables.FIGURES:
    values = row.figures.get(figure, [])
    if figure == "acceptance_by_depth":
      for position, value in enumerate(values, 1):
        found.update(_columns(f"acceptance_{position}", value))
    else:
      found.update(_columns(_NAMES.get(figure, figure), values))
  return found


def _columns(name, values):
  return dict(zip((name, f"{name}_low", f"{name}_high"), values))
