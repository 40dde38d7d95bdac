"""Draws the figures of an experiment, as PNG files, some as PDF too."""

import itertools

from experiments.evaluation import tables

# Okabe and Ito's colours, distinct to most colour-blind people.
_STYLES = {"SD": ("#666666", "o"), "SpecTr": ("#E69F00", "s"),
           "SpecInfer": ("#56B4E9", "D"), "RSD-C": ("#009E73", "^"),
           "RSD-S": ("#D55E00", "v")}
_OTHERS = (("#CC79A7", "P"), ("#0072B2", "X"), ("#000000", "*"),
           ("#E69F00", "s"), ("#56B4E9", "D"), ("#999933", "p"))
# Points of several methods side by side, so that no interval hides another.
_SPREAD = 0.12


def write(folder, rows):
  """Writes a PNG per metric, with a panel per experiment and temperature.

  Args:
    folder: Path to write to.
    rows: of `tables.rows`.

  Returns:
    list of paths.
  """
  paths = []
  for metric, title in tables.METRICS.items():
    panels = tables.best(rows, metric)
    if panels:
      path = folder / f"{metric}.png"
      _draw(panels, metric, title, lambda experiment, temperature: (
          f"T = {temperature:g}", tables.POINTS[experiment])).savefig(
              path, dpi=120)
      paths.append(path)
  return paths


def write_drafters(folder, rows):
  """Writes block efficiencies as PNG and PDF, a panel for each drafter.

  Args:
    folder: Path to write to.
    rows: dict from drafters to rows of `tables.rows`, which have a panel at
      each temperature.

  Returns:
    list of paths.
  """
  metric = "block_efficiency"
  panels = {(temperature, name): trees for name, of_drafter in rows.items()
            for (experiment, temperature), trees in tables.best(
                of_drafter, metric).items() if experiment == "budget"}
  if not panels:
    return []
  fig = _draw(panels, metric, tables.METRICS[metric],
              lambda temperature, name: (f"{name}, T = {temperature:g}",
                                         tables.POINTS["budget"]))
  paths = [folder / f"drafters.{kind}" for kind in ("png", "pdf")]
  for path in paths:
    fig.savefig(path, dpi=120)
  return paths


def styles(labels):
  """Returns a dict from labels of methods to (color, marker)."""
  others = itertools.cycle(_OTHERS)
  return {label: _STYLES.get(label) or next(others) for label in labels}


def _draw(panels, metric, title, describe):
  """Draws panels.

  Args:
    panels: dict from (row, column) to the trees of a panel, see `tables.best`.
    metric: a key of `tables.METRICS`.
    title: of the vertical axes.
    describe: `(row, column) -> (title, label of the horizontal axis)`.
  """
  rows, columns = (list(dict.fromkeys(x)) for x in zip(*panels))
  size = (1 + 3.2 * len(columns), 0.8 + 2.9 * len(rows))
  # Imported here to start runs half a second earlier. No pyplot: it would look
  # for a display.
  from matplotlib import figure  # pylint: disable=import-outside-toplevel
  fig = figure.Figure(figsize=size, layout="constrained")
  axes = fig.subplots(len(rows), len(columns), squeeze=False, sharey=True)
  for i, j in itertools.product(range(len(rows)), range(len(columns))):
    ax, place = axes[i, j], (rows[i], columns[j])
    _panel(ax, panels[place], metric)
    heading, label = describe(*place)
    ax.set_title(heading, fontsize=10)
    ax.set_xlabel(label)
    if not j:
      ax.set_ylabel(title)
  handles, labels = axes[0, 0].get_legend_handles_labels()
  # An inch holds about eleven letters; a marker is as wide as six.
  fitting = int(11 * size[0] / (6 + max(map(len, labels))))
  fig.legend(handles, labels, loc="outside upper center",
             ncols=max(1, min(len(labels), fitting)), frameon=False)
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
