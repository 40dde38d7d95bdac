"""Draws the speed-up of methods by category of prompts, as PNG and PDF."""

from experiments.evaluation import figures
from experiments.evaluation import result_rows
from experiments.evaluation import tables

_METRIC = "token_rate_ratio"
_NAME = "speed_up_by_category"


def write(folder, results):
  """Writes a figure with a panel per temperature.

  Of each method it has the sizes that are fastest on all prompts.

  Args:
    folder: Path to write to.
    results: of `result_rows.rows`.

  Returns:
    list of paths; empty without categories, or where they were not timed.
  """
  timed = [row for row in results if _METRIC in row.figures
           and row.method != result_rows.PLAIN]
  if all(row.category == result_rows.ALL for row in timed):
    return []
  return figures.save(_draw(timed), folder, _NAME)


def _draw(rows):
  temperatures = list(dict.fromkeys(row.temperature for row in rows))
  fig, axes = figures.panels(1, len(temperatures))
  for ax, temperature in zip(axes[0], temperatures):
    _panel(ax, [row for row in rows if row.temperature == temperature])
    ax.set_title(f"T = {temperature:g}", fontsize=10)
  axes[0, 0].set_ylabel("speed-up")
  figures.add_legend(fig, axes[0, 0])
  return fig


def _panel(ax, rows):
  categories = list(dict.fromkeys(row.category for row in rows))
  fastest = _fastest(rows)
  for i, (label, style) in enumerate(figures.styles(fastest).items()):
    found = {row.category: row.figures[_METRIC] for row in rows
             if row.method == fastest[label]}
    places = [categories.index(x) + figures.shift(i, len(fastest))
              for x in found]
    figures.draw(ax, places, list(found.values()), label, style,
                 linestyle="none")
  ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
  ax.set_xticks(range(len(categories)), categories, rotation=30, ha="right")
  ax.grid(axis="y", alpha=0.3)


def _fastest(rows):
  """Returns, by label, the name of the method that is fastest on all."""
  found = {}
  for row in rows:
    if row.category == result_rows.ALL:
      name = tables.label(row.method)
      rival = found.get(name, row)
      found[name] = max(rival, row, key=lambda x: x.figures[_METRIC][0])
  return {name: row.method for name, row in found.items()}
