"""Long records, their pivot, and tables for every type of reader.

A long record is a dict: keys that tell what was measured, such as `method` and
`temperature`; `metric`; and `value`, `low` and `high`, a figure with its 95 %
interval, None where unknown. A metric of several positions has a record for
each, with `position` from 1.

A report is a list of texts and of tables, (title, lines); it is rendered for
the terminal, as Markdown or as LaTeX.
"""

import csv

# Characters that LaTeX reads as commands.
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}", **{x: f"\\{x}" for x in "&%$#_{}"}})
EMPTY = "-"


def long_records(figures, **keys) -> list[dict]:
  """Returns the long records of figures, metric -> figure.

  A figure is [value, low, high], a value alone, or a list with one of these
  lists for each position.
  """
  records = []
  for metric, figure in figures.items():
    several = isinstance(figure, list) and all(
        isinstance(x, list) for x in figure)
    for position, part in enumerate(figure if several else [figure], 1):
      values = part if isinstance(part, list) else [part]
      value, low, high = [*values, None, None][:3]
      records.append({
          **keys, "metric": metric, "value": value, "low": low, "high": high,
          **({"position": position} if several else {})})
  return records


def count(number, noun) -> str:
  """Returns "1 step" or "2 steps" of a number and a noun."""
  return f"{number} {noun}{'' if number == 1 else 's'}"


def figure(record) -> list:
  """Returns [value, low, high] of a long record."""
  return [record["value"], record["low"], record["high"]]


def select(records, **keys) -> list[dict]:
  """Returns the records that have these values of keys."""
  return [r for r in records if all(r[k] == v for k, v in keys.items())]


def grouped(records, *keys) -> dict[tuple, list[dict]]:
  """Returns the records by their values of keys, in order."""
  groups = {}
  for r in records:
    groups.setdefault(tuple(r[k] for k in keys), []).append(r)
  return groups


def interval(value, low=None, high=None, spec=".2f") -> str:
  """Formats a figure with the ends of its interval."""
  return _formatted(value, spec) + (
      "" if low is None else f" [{low:{spec}}, {high:{spec}}]")


def plus_minus(value, low=None, high=None, spec=".2f") -> str:
  """Formats a figure with half of its interval."""
  return _formatted(value, spec) + (
      "" if low is None else f"±{(high - low) / 2:{spec}}")


def _formatted(value, spec):
  if value is None:
    return EMPTY
  return value if isinstance(value, str) else f"{value:{spec}}"


def pivot(records, rows, column="metric", titles=None, form=interval, specs=()):
  """Makes the lines of a table of long records, the head first.

  `rows` are the keys that a line begins with and their titles; `column` is the
  key whose values are columns, `titles` these and their titles in order, None
  for all. `form` is `(value, low, high, spec) -> text`, `specs` are metric ->
  format spec, ".2f" if not given. Several records of a cell are written after
  each other; without any it is `EMPTY`.
  """
  if titles is None:
    titles = {x: str(x) for x in sorted({r[column] for r in records})}
  lines, specs = {}, dict(specs)
  for r in records:
    if r[column] in titles:
      cells = lines.setdefault(tuple(_formatted(r[x], "") for x in rows), {})
      cells.setdefault(r[column], []).append(
          form(*figure(r), specs.get(r["metric"], ".2f")))
  return [[*rows.values(), *titles.values()], *(
      [*line, *(" ".join(cells.get(x, [EMPTY])) for x in titles)]
      for line, cells in lines.items())]


def render(blocks, form) -> str:
  """Joins texts and (title, lines), formatted by `terminal`, `markdown` or
  `latex`; empty ones are left out.
  """
  return "\n\n".join(x if isinstance(x, str) else form(*x)
                     for x in blocks if x)


def write(path, blocks, form=None) -> None:
  """Writes a report to a file, by default as Markdown; see `render`."""
  path.write_text(f"{render(blocks, form or markdown)}\n", encoding="utf-8")


def write_csv(path, records, keys, columns, origin) -> None:
  """Writes a line for each value of keys, figures in full, and the origin.

  `columns` are metric -> name; `_low`, `_high` and positions are appended.
  """
  lines, names = {}, dict.fromkeys(keys)
  for metric, column in columns.items():
    for r in select(records, metric=metric):
      name = f"{column}_{r['position']}" if "position" in r else column
      figures = dict(zip((name, f"{name}_low", f"{name}_high"), figure(r)))
      line = tuple(r[x] for x in keys)
      lines.setdefault(line, dict(zip(keys, line)) | origin).update(figures)
      names |= figures
  with open(path, "w", encoding="utf-8", newline="") as f:
    writer = csv.DictWriter(f, [*names, *origin], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines.values())


def terminal(title, lines) -> str:
  """Formats a table for the terminal; "" for no title."""
  return f"{title}\n{plain_table(lines)}" if title else plain_table(lines)


def markdown(title, lines) -> str:
  """Formats a table in Markdown; "" for no title."""
  text = ["| " + " | ".join(line) + " |" for line in lines]
  return "\n".join([*([f"## {title}", ""] if title else []), text[0],
                    "|---" * len(lines[0]) + "|", *text[1:]])


def latex(title, lines) -> str:
  """Formats a table of the LaTeX package booktabs, the title its caption."""
  text = [" & ".join(x.translate(_LATEX) for x in line) + r" \\"
          for line in lines]
  return "\n".join([
      r"\begin{table}", rf"\caption{{{title.translate(_LATEX)}}}",
      r"\begin{tabular}{l" + "r" * (len(lines[0]) - 1) + "}", r"\toprule",
      text[0], r"\midrule", *text[1:], r"\bottomrule", r"\end{tabular}",
      r"\end{table}"])


def plain_table(lines) -> str:
  """Formats aligned columns, the first to the left, with a ruled-off head."""
  widths = [max(map(len, column)) for column in zip(*lines)]
  text = ["  ".join([line[0].ljust(widths[0]),
                     *(x.rjust(w) for x, w in zip(line[1:], widths[1:]))])
          for line in lines]
  return "\n".join([text[0], "-" * len(text[0]), *text[1:]])
