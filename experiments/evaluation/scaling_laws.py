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


def measured(records) -> list[dict]:
  """Returns the long records of overlap and of tokens a target call.

  Args:
    records: of `experiments.scaling`, one of each drafter and number of tokens.

  Returns:
    list of dicts with `drafter`, `parameters` and `tokens`.
  """
  return [found for r in records for found in text_tables.long_records(
      {_OVERLAP: r[_OVERLAP], **{
          f"T = {x['temperature']:g}": intervals.json_values(intervals.interval(
              x["emitted"], x["target_calls"], 0)) for x in r["decoded"]}},
      drafter=r["drafter"], parameters=r[_PARAMETERS], tokens=r[_TOKENS])]


def laws(found) -> dict[str, dict[str, Law]]:
  """Fits the laws of each figure.

  Args:
    found: of `measured`.

  Returns:
    dict: figure -> what it is of -> law.
  """
  largest, most = (max(r[x] for r in found) for x in (_PARAMETERS, _TOKENS))
  law = lambda some, *names: fit([[r[x] for r in some] for x in names],
                                 [r["value"] for r in some])
  return {figure: {
      "parameters and tokens": law(some, _PARAMETERS, _TOKENS),
      f"tokens, {largest:,} parameters": law(text_tables.select(
          some, parameters=largest), _TOKENS),
      f"parameters, {most:,} tokens": law(text_tables.select(
          some, tokens=most), _PARAMETERS)}
          for (figure,), some in text_tables.grouped(found, "metric").items()}


def terminal(records) -> str:
  """Formats measurements and laws for the terminal."""
  return text_tables.render(_tables(records, text_tables.plus_minus),
                            text_tables.terminal)


def write(folder, records, about=""):
  """Writes summary.md, and scaling.png and .pdf.

  Args:
    folder: Path to write to.
    records: of `experiments.scaling`.
    about: of `provenance.markdown`.
  """
  text_tables.write(folder / "summary.md", [
      "# Drafters by size and training", about, _NOTE,
      *_tables(records, text_tables.interval)])
  figures.save(_draw(measured(records)), folder, "scaling")


def _tables(records, form):
  """Yields a table of each figure, drafters by tokens, and one of the laws."""
  found = measured(records)
  titles = {x: f"{x:,} tokens" for x in sorted({r[_TOKENS] for r in found})}
  for (name,), some in text_tables.grouped(found, "metric").items():
    yield "", text_tables.pivot(
        [{**r, "size": f"{r[_PARAMETERS]:,}"}
         for r in sorted(some, key=lambda r: r[_PARAMETERS])],
        {"drafter": name, "size": _PARAMETERS}, _TOKENS, titles, form,
        {_OVERLAP: ".3f"})
  yield "", text_tables.pivot(
      [r for name, of_name in laws(found).items() for of, law in of_name.items()
       for r in text_tables.long_records(
           {"constant": law.constant, "r2": law.r2, **dict(zip(
               [x for x in (_PARAMETERS, _TOKENS) if x in of.split(",")[0]],
               law.slopes))}, name=name, of=of)],
      {"name": "law", "of": "of"},
      titles={"constant": "constant", _PARAMETERS: "slope by parameters",
              _TOKENS: "by tokens", "r2": "R^2"},
      specs={"constant": "+.3f", _PARAMETERS: "+.3f", _TOKENS: "+.3f",
             "r2": ".3f"})


def _draw(found):
  """Draws each figure by tokens and by parameters, and the joint law."""
  # Imported here, as in `figures`.
  from matplotlib import figure  # pylint: disable=import-outside-toplevel
  by_name = text_tables.grouped(found, "metric")
  fig = figure.Figure(figsize=(1 + 3.2 * len(by_name), 7), layout="constrained")
  axes = fig.subplots(2, len(by_name), squeeze=False, sharey="col")
  for (row, (x, other)), (column, ((name,), some)) in itertools.product(
      enumerate(((_TOKENS, _PARAMETERS), (_PARAMETERS, _TOKENS))),
      enumerate(by_name.items())):
    ax = axes[row, column]
    _panel(ax, some, x, other, laws(some)[name]["parameters and tokens"])
    ax.set_xlabel(f"{x} of the {'training' if x == _TOKENS else 'drafter'}")
    ax.set_title(name if name == _OVERLAP else f"tokens a target call, {name}",
                 fontsize=10)
    if not column:
      ax.legend(title=other, fontsize=8, title_fontsize=8)
  return fig


def _panel(ax, found, x, other, law):
  """Draws a line for each value of `other`, and what the law says of it."""
  groups = text_tables.grouped(sorted(found, key=lambda r: (r[other], r[x])),
                               other)
  for ((value,), members), style in zip(groups.items(),
                                        figures.styles(groups).values()):
    places = [r[x] for r in members]
    figures.draw(ax, places, [text_tables.figure(r) for r in members],
                 f"{value:,}", style, linestyle="none")
    ax.plot(places, [law.constant + np.dot(law.slopes, np.log10(
        [r[_PARAMETERS], r[_TOKENS]])) for r in members], color=style[0],
            linewidth=0.8)
  figures.log_axis(ax, sorted({r[x] for r in found}))
  ax.tick_params(axis="x", labelsize=8)
  ax.grid(alpha=0.3)
