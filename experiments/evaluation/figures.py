"""Draws the figures of an experiment, as PNG and PDF files."""

import itertools

from experiments.evaluation import tables

# Okabe and Ito's colours, distinct to most colour-blind people.
_STYLES = {"SD": ("#666666", "o"), "SpecTr": ("#E69F00", "s"),
           "SpecInfer": ("#56B4E9", "D"), "RSD-C": ("#009E73", "^"),
           "RSD-S": ("#D55E00", "v")}
_OTHERS = (("#CC79A7", "P"), ("#0072B2", "X"), ("#000000", "*"),
           ("#E69F00", "s"), ("#56B4E9", "D"), ("#999933", "p"))
_KINDS = "png", "pdf"
# Points of several methods side by side, so that no interval hides another.
_SPREAD = 0.12


def write(folder, rows):
  """Writes a figure per metric, with a panel per experiment and temperature.

  Args:
    folder: Path to write to.
    rows: of `tables.rows`.

  Returns:
    list of paths, a PNG and a PDF file per metric.
  """
  paths = []
  for metric, title in tables.METRICS.items():
    panels = tables.best(rows, metric)
    if panels:
      drawn = _draw(panels, metric, title)
      for kind in _KINDS:
        paths.append(folder / f"{metric}.{kind}")
        drawn.savefig(paths[-1], dpi=120)
  return paths


def styles(labels):
  """Returns a dict from labels of methods to (color, marker)."""
  others = itertools.cycle(_OTHERS)
  return {label: _STYLES.get(label) or next(others) for label in labels}


def _draw(panels, metric, title):
  experiments = list(dict.fromkeys(e for e, _ in panels))
  temperatures = list(dict.fromkeys(t for _, t in panels))
  size = (1 + 3.2 * len(temperatures), 0.8 + 2.9 * len(experiments))
  # Imported here to start runs half a second earlier. No pyplot: it would look
  # for a display.
  from matplotlib import figure  # pylint: disable=import-outside-toplevel
  fig = figure.Figure(figsize=size, layout="constrained")
  axes = fig.subplots(len(experiments), len(temperatures), squeeze=False,
                      sharey=True)
  for row, experiment in zip(axes, experiments):
    for ax, temperature in zip(row, temperatures):
      _panel(ax, panels[experiment, temperature], metric)
      ax.set_title(f"T = {temperature:g}", fontsize=10)
      ax.set_xlabel(tables.POINTS[experiment])
    row[0].set_ylabel(title)
  handles, labels = axes[0, 0].get_legend_handles_labels()
  fig.legend(handles, labels, loc="outside upper center", ncols=len(labels),
             frameon=False)
  return fig


def _panel(ax, methods, metric):
  """Draws the best tree of each method at each point, with its interval."""
  points = sorted({point for trees in methods.values() for point in trees})
  for i, (label, (color, marker)) in enumerate(styles(methods).items()):
    trees = methods[label]
    shift = _SPREAD * (i - (len(methods) - 1) / 2)
    x = [points.index(point) + shift for point in sorted(trees)]
    figures = [trees[point]["metrics"][metric] for point in sorted(trees)]
    y = [value for value, _, _ in figures]
    # A percentile interval need not hold the figure itself.
    bars = [[0 if low is None else max(0, value - low)
             for value, low, _ in figures],
            [0 if high is None else max(0, high - value)
             for value, _, high in figures]]
    ax.errorbar(x, y, yerr=bars, label=label, color=color, marker=marker,
                markersize=4, linewidth=1, elinewidth=1)
  ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
  ax.set_xticks(range(len(points)), map(str, points))
  ax.grid(axis="y", alpha=0.3)
