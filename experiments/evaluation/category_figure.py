"""Draws the speed-up of methods by category of prompts, as PNG and PDF."""

from experiments.evaluation import figures
from experiments.evaluation import result_rows
from experiments.evaluation import tables

_METRIC = "token_rate_ratio"
_NAME = "speed_up_by_category"
# Methods of a category are side by side, so that no interval hides another;
# all of them take this share of the room between categories.
_SPREAD = 0.5


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
  by_label = figures.styles(dict.fromkeys(tables.label(x.method)
                                          for x in rows))
  for ax, temperature in zip(axes[0], temperatures):
    _panel(ax, [row for row in rows if row.temperature == temperature],
           by_label)
    ax.set_title(f"T = {temperature:g}", fontsize=10)
  axes[0, 0].set_ylabel("speed-up")
  figures.add_legend(fig)
  return fig


def _panel(ax, rows, by_label):
  categories = list(dict.fromkeys(row.category for row in rows))
  fastest = _fastest(rows)
  for i, (label, method) in enumerate(fastest.items()):
    found = {row.category: row.figures[_METRIC] for row in rows
             if row.method == method}
    shift = _SPREAD * ((i + 0.5) / len(fastest) - 0.5)
    figures.draw(ax, [categories.index(x) + shift for x in found],
                 list(found.values()), label, by_label[label],
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
