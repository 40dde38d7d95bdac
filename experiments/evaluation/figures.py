"""Draws the figures of an experiment, as PNG and PDF files."""

import io
import itertools

from experiments.evaluation import tables

# Okabe and Ito's colours, distinct to most colour-blind people.
_STYLES = {"SD": ("#666666", "o"), "SpecTr": ("#E69F00", "s"),
           "SpecInfer": ("#56B4E9", "D"), "RSD-C": ("#009E73", "^"),
           "RSD-S": ("#D55E00", "v")}
# For others: the rest of them, and then Tol's, darker ones.
_COLORS = ("#CC79A7", "#0072B2", "#000000", "#999933", "#D55E00", "#009E73",
           "#E69F00", "#56B4E9", "#666666", "#882255", "#332288", "#8C510A",
           "#AA4499", "#117733", "#DDCC77", "#CC6677")
# Their number has no divisor in common with that of colours, so that pairs do
# not repeat soon.
_MARKERS = "PX*pdosD^v<"
_DPI = 100
# Of a PNG file: lines, and their edges.
_PNG_COLORS = 128


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
  """Returns a dict from labels of methods to (color, marker).

  Colours are distinct as long as there are at most 16 labels.

  Args:
    labels: of all panels of a figure, each once.
  """
  used = {_STYLES[label][0] for label in labels if label in _STYLES}
  others = zip(itertools.cycle(x for x in _COLORS if x not in used),
               itertools.cycle(_MARKERS))
  return {label: _STYLES.get(label) or next(others) for label in labels}


def save(fig, folder, name):
  """Writes a figure as PNG and PDF; returns the paths."""
  png, pdf = (folder / f"{name}.{kind}" for kind in ("png", "pdf"))
  save_png(fig, png)
  fig.savefig(pdf)
  return [png, pdf]


def save_png(fig, path):
  """Writes a figure as a PNG file of few colours, which is small."""
  from PIL import Image  # pylint: disable=import-outside-toplevel
  buffer = io.BytesIO()
  fig.savefig(buffer, format="png", dpi=_DPI)
  # A median cut would lose colours of few pixels, such as those of markers.
  Image.open(buffer).convert("RGB").quantize(
      _PNG_COLORS, Image.Quantize.MAXCOVERAGE, kmeans=2).save(
          path, "PNG", optimize=True)


def panels(height, width):
  """Returns a figure, and its `[height, width]` axes of one scale."""
  # Imported here to start runs half a second earlier. No pyplot: it would look
  # for a display.
  from matplotlib import figure  # pylint: disable=import-outside-toplevel
  fig = figure.Figure(figsize=(1 + 3.2 * width, 0.8 + 2.9 * height),
                      layout="constrained")
  return fig, fig.subplots(height, width, squeeze=False, sharey=True)


def add_legend(fig):
  """Puts the labels of all panels above them, each once."""
  handles = {label: handle for ax in fig.axes for handle, label in zip(
      *ax.get_legend_handles_labels())}
  if not handles:
    return
  # An inch holds about eleven letters; a marker is as wide as six.
  fitting = int(11 * fig.get_figwidth() / (6 + max(map(len, handles))))
  fig.legend(handles.values(), handles, loc="outside upper center",
             ncols=max(1, min(len(handles), fitting)), frameon=False)


def log_axis(ax, ticks=None):
  """Makes a horizontal axis logarithmic, with plain numbers such as 2, 5, 10.

  Args:
    ax: a panel.
    ticks: where numbers are; None for 1, 2 and 5 times powers of ten.
  """
  from matplotlib import ticker  # pylint: disable=import-outside-toplevel
  ax.set_xscale("log")
  ax.xaxis.set_major_locator(ticker.FixedLocator(ticks) if ticks else
                             ticker.LogLocator(subs=(1, 2, 5)))
  ax.xaxis.set_major_formatter("{x:,.12g}")
  ax.xaxis.set_minor_locator(ticker.NullLocator())


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
  by_label = styles(dict.fromkeys(itertools.chain(*chosen.values())))
  for i, j in itertools.product(range(len(rows)), range(len(columns))):
    ax, place = axes[i, j], (rows[i], columns[j])
    _panel(ax, chosen[place], metric, by_label)
    heading, label = describe(*place)
    ax.set_title(heading, fontsize=10)
    ax.set_xlabel(label)
    if not j:
      ax.set_ylabel(title)
  add_legend(fig)
  return fig


def _panel(ax, methods, metric, by_label):
  """Draws the best trees of each method, with their intervals."""
  for label, trees in methods.items():
    found = _by_size(trees, metric)
    draw(ax, list(found), list(found.values()), label, by_label[label])
  points = sorted({point for trees in methods.values() for point in trees})
  if any(row["experiment"] == "budget" for trees in methods.values()
         for row in trees.values()):
    log_axis(ax, points)
  else:
    ax.set_xticks(points)
  ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
  ax.grid(axis="y", alpha=0.3)


def _by_size(trees, metric):
  """Returns a dict from sizes of trees to their figures, by rising size.

  Args:
    trees: dict from points to rows, of which several may have one tree: the
      best one within a budget of nodes may have fewer.
    metric: a key of `tables.METRICS`.

  Returns:
    Nodes of a tree within a budget, else its point, to [figure, low, high].
  """
  found = {}
  for point, row in trees.items():
    size = row["tree_nodes"] if row["experiment"] == "budget" else point
    figure = row["metrics"][metric]
    found[size] = max(found.get(size, figure), figure, key=lambda x: x[0])
  return dict(sorted(found.items()))
