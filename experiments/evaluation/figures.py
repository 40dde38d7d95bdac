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
  def describe(experiment, temperature):
    return f"T = {temperature:g}", tables.POINTS[experiment]

  paths = []
  for metric, title in tables.METRICS.items():
    chosen = tables.best(rows, metric)
    if chosen:
      paths += save(_draw(chosen, metric, title, describe), folder, metric)
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
  chosen = {(temperature, name): trees for name, of_drafter in rows.items()
            for (experiment, temperature), trees in tables.best(
                of_drafter, metric).items() if experiment == "budget"}
  if not chosen:
    return []
  return save(_draw(chosen, metric, tables.METRICS[metric],
                    lambda temperature, name: (f"{name}, T = {temperature:g}",
                                               tables.POINTS["budget"])),
              folder, "drafters")


def styles(labels):
  """Returns a dict from labels of methods to (color, marker)."""
  others = itertools.cycle(_OTHERS)
  return {label: _STYLES.get(label) or next(others) for label in labels}


def save(fig, folder, name):
  """Writes a figure as PNG and PDF; returns the paths."""
  paths = [folder / f"{name}.{kind}" for kind in _KINDS]
  for path in paths:
    fig.savefig(path, dpi=120)
  return paths


def panels(height, width):
  """Returns a figure, and its `[height, width]` axes of one scale."""
  # Imported here to start runs half a second earlier. No pyplot: it would look
  # for a display.
  from matplotlib import figure  # pylint: disable=import-outside-toplevel
  fig = figure.Figure(figsize=(1 + 3.2 * width, 0.8 + 2.9 * height),
                      layout="constrained")
  return fig, fig.subplots(height, width, squeeze=False, sharey=True)


def add_legend(fig, ax):
  """Puts the labels of one panel above all of them."""
  handles, labels = ax.get_legend_handles_labels()
  # An inch holds about eleven letters; a marker is as wide as six.
  fitting = int(11 * fig.get_figwidth() / (6 + max(map(len, labels))))
  fig.legend(handles, labels, loc="outside upper center",
             ncols=max(1, min(len(labels), fitting)), frameon=False)


def shift(number, count):
  """Returns how far beside its point one of several methods is drawn."""
  return _SPREAD * (number - (count - 1) / 2)


def draw(ax, places, values, label, style, **more):
  """Draws figures with their intervals.

  Args:
    ax: a panel.
    places: of the figures.
    values: list of [figure, low, high].
    label: of the method.
    style: (color, marker).
    **more: of `errorbar`.
  """
  # A percentile interval need not hold the figure itself.
  bars = [[0 if low is None else max(0, value - low)
           for value, low, _ in values],
          [0 if high is None else max(0, high - value)
           for value, _, high in values]]
  color, marker = style
  ax.errorbar(places, [value for value, _, _ in values], yerr=bars, label=label,
              color=color, marker=marker, markersize=4, elinewidth=1,
              **{"linewidth": 1, **more})


def _draw(chosen, metric, title, describe):
  """Draws panels.

  Args:
    chosen: dict from (row, column) to the trees of a panel, see `tables.best`.
    metric: a key of `tables.METRICS`.
    title: of the vertical axes.
    describe: `(row, column) -> (title, label of the horizontal axis)`.
  """
  rows, columns = (list(dict.fromkeys(x)) for x in zip(*chosen))
  fig, axes = panels(len(rows), len(columns))
  for i, j in itertools.product(range(len(rows)), range(len(columns))):
    ax, place = axes[i, j], (rows[i], columns[j])
    _panel(ax, chosen[place], metric)
    heading, label = describe(*place)
    ax.set_title(heading, fontsize=10)
    ax.set_xlabel(label)
    if not j:
      ax.set_ylabel(title)
  add_legend(fig, axes[0, 0])
  return fig


def _panel(ax, methods, metric):
  """Draws the best tree of each method at each point, with its interval."""
  points = sorted({point for trees in methods.values() for point in trees})
  for i, (label, style) in enumerate(styles(methods).items()):
    trees = methods[label]
    draw(ax, [points.index(point) + shift(i, len(methods))
              for point in sorted(trees)],
         [trees[point]["metrics"][metric] for point in sorted(trees)], label,
         style)
  ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
  ax.set_xticks(range(len(points)), map(str, points))
  ax.grid(axis="y", alpha=0.3)
