"""Laws of acceptance by the size of a drafter and the tokens of its training.

Yan et al. 2025, "Scaling Laws for Speculative Decoding" (arXiv 2505.07858):
acceptance is linear in the logarithm of the tokens that a drafter was trained
on (theorem 1.1) and in that of its capacity (theorem 1.2). Both are fitted here
by least squares, each on its own and together.
"""

import itertools
from typing import NamedTuple

import numpy as np

from experiments.app import text_tables
from experiments.evaluation import figures
from experiments.evaluation import tables
from experiments.scoring import intervals

_OVERLAP = "overlap"
_PARAMETERS, _TOKENS = "parameters", "tokens"
_NOTE = """\
Parameters are those without the table of embeddings. Overlap: sum_x min(t, d)
on held-out text, the acceptance rate of one drafted token at temperature 1; T:
tokens a target call at a temperature, with 95 % bootstrap intervals over
prompts. Laws: constant + slope x log10, with the share of the variance that
they explain (R^2); the first is of all drafters, the others are of the largest
one alone and of the most tokens alone."""


class Law(NamedTuple):
  """A law: `constant + sum(slopes * log10(x))`.

  Attributes:
    constant: of the law.
    slopes: of each variable, what ten times as much of it adds.
    r2: the share of the variance that is explained; NaN if there is none.
  """
  constant: float
  slopes: tuple[float, ...]
  r2: float


def fit(variables, values) -> Law:
  """Fits a law by least squares.

  Args:
    variables: list of `[n]`, positive numbers.
    values: `[n]`.

  Returns:
    The law. Of fewer points than it has constants it is the smallest one.
  """
  values = np.asarray(values, float)
  columns = np.stack([np.ones(len(values)), *(
      np.log10(np.asarray(x, float)) for x in variables)], axis=1)
  found = np.linalg.lstsq(columns, values, rcond=None)[0]
  variance = ((values - values.mean())**2).sum()
  r2 = 1 - ((values - columns @ found)**2).sum() / variance if (
      variance > 0) else np.nan
  return Law(float(found[0]), tuple(map(float, found[1:])), float(r2))


def laws(records) -> dict[str, dict[str, Law]]:
  """Fits the laws of each figure.

  Args:
    records: of `experiments.scaling`, one of each drafter and number of tokens.

  Returns:
    dict: figure -> what it is of -> law.
  """
  largest = max(r[_PARAMETERS] for r in records)
  most = max(r[_TOKENS] for r in records)
  by_size = [r for r in records if r[_PARAMETERS] == largest]
  by_tokens = [r for r in records if r[_TOKENS] == most]
  column = lambda some, name: [r[name] for r in some]
  return {figure: {
      "parameters and tokens": fit(
          [column(records, _PARAMETERS), column(records, _TOKENS)],
          _values(records, figure)),
      f"tokens, {largest:,} parameters": fit(
          [column(by_size, _TOKENS)], _values(by_size, figure)),
      f"parameters, {most:,} tokens": fit(
          [column(by_tokens, _PARAMETERS)], _values(by_tokens, figure))}
          for figure in _figures(records)}


def terminal(records) -> str:
  """Formats measurements and laws for the terminal."""
  return "\n\n".join(text_tables.plain_table(lines) for lines in (
      *_measured(records, tables.plus_minus), _law_lines(records)))


def write(folder, records, about=""):
  """Writes summary.md, and scaling.png and .pdf.

  Args:
    folder: Path to write to.
    records: of `experiments.scaling`.
    about: of `provenance.markdown`.
  """
  blocks = ["# Drafters by size and training", about, _NOTE]
  blocks += map(text_tables.markdown_table, (
      *_measured(records, tables.interval), _law_lines(records)))
  (folder / "summary.md").write_text(
      "\n\n".join(filter(None, blocks)) + "\n", encoding="utf-8")
  figures.save(_draw(records), folder, "scaling")


def _figures(records):
  return [_OVERLAP, *(f"T = {x['temperature']:g}"
                      for x in records[0]["decoded"])]


def _figure(record, name):
  """Returns `[3]`, a figure and its interval, None where there is none."""
  if name == _OVERLAP:
    return [record[_OVERLAP], None, None]
  found = next(x for x in record["decoded"]
               if f"T = {x['temperature']:g}" == name)
  return intervals.json_values(intervals.interval(
      found["emitted"], found["target_calls"], 0))


def _values(records, name):
  return [_figure(record, name)[0] for record in records]


def _groups(records, by):
  """Returns lists of the records that agree in a field, in order."""
  return {key: [r for r in records if r[by] == key]
          for key in sorted({r[by] for r in records})}


def _measured(records, form):
  """Yields lines of a table of each figure: drafters by tokens."""
  tokens = list(_groups(records, _TOKENS))
  for name in _figures(records):
    lines = [[name, _PARAMETERS, *(f"{x:,} tokens" for x in tokens)]]
    for size, members in _groups(records, _PARAMETERS).items():
      found = {r[_TOKENS]: form(_figure(r, name), 3 if name == _OVERLAP else 2)
               for r in members}
      lines.append([members[0]["drafter"], f"{size:,}", *(
          found.get(x, "") for x in tokens)])
    yield lines


def _law_lines(records):
  lines = [["law", "of", "constant", "slope by parameters", "by tokens",
            "R^2"]]
  for name, found in laws(records).items():
    for of, law in found.items():
      slopes = [f"{x:+.3f}" for x in law.slopes]
      if len(slopes) == 1:
        slopes = [slopes[0], ""] if of.startswith(_PARAMETERS) else [
            "", slopes[0]]
      lines.append([name, of, f"{law.constant:+.3f}", *slopes,
                    f"{law.r2:.3f}"])
  return lines


def _draw(records):
  """Draws each figure by tokens and by parameters, and the joint law."""
  # Imported here, as in `figures`.
  from matplotlib import figure  # pylint: disable=import-outside-toplevel
  names, found = _figures(records), laws(records)
  fig = figure.Figure(figsize=(1 + 3.2 * len(names), 7), layout="constrained")
  axes = fig.subplots(2, len(names), squeeze=False, sharey="col")
  for (row, (x, other)), (column, name) in itertools.product(
      enumerate(((_TOKENS, _PARAMETERS), (_PARAMETERS, _TOKENS))),
      enumerate(names)):
    ax = axes[row, column]
    _panel(ax, records, name, x, other, found[name]["parameters and tokens"])
    ax.set_xlabel(f"{x} of the {'training' if x == _TOKENS else 'drafter'}")
    ax.set_title(name if name == _OVERLAP else f"tokens a target call, {name}",
                 fontsize=10)
    if not column:
      ax.legend(title=other, fontsize=8, title_fontsize=8)
  return fig


def _panel(ax, records, name, x, other, law):
  """Draws a line for each value of `other`, and what the law says of it."""
  groups = _groups(records, other)
  for value, (color, marker) in figures.styles(groups).items():
    members = sorted(groups[value], key=lambda r: r[x])
    places = [r[x] for r in members]
    figures.draw(ax, places, [_figure(r, name) for r in members],
                 f"{value:,}", (color, marker), linestyle="none")
    ax.plot(places, [law.constant + np.dot(law.slopes, np.log10(
        [r[_PARAMETERS], r[_TOKENS]])) for r in members], color=color,
            linewidth=0.8)
  figures.log_axis(ax, list(_groups(records, x)))
  ax.tick_params(axis="x", labelsize=8)
  ax.grid(alpha=0.3)
