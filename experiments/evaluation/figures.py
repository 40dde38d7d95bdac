"""Draws the figures of an experiment, as PNG and PDF files."""

import io
import itertools

from experiments.app import text_tables
from experiments.evaluation import record_figures

METRICS = {"block_efficiency": "block efficiency", "mbsu": "MBSU",
           "token_rate_ratio": "token rate x AR"}
POINTS = {"length": "draft length", "budget": "nodes scored a target call"}
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
# Methods of a category are side by side, so that no interval hides another;
# all of them take this share of the room between categories.
_SPREAD = 0.5


def write(folder, trees):
  """Writes a figure per metric, with a panel per experiment and temperature.

  Args:
    folder: Path to write to.
    trees: of `tree_tables.best`.

  Returns:
    list of paths, a PNG and a PDF file per metric.
  """
  paths = []
  for metric, title in METRICS.items():
    panels_ = text_tables.grouped(text_tables.select(trees, metric=metric),
                                  "experiment", "temperature")
    if panels_:
      fig = draw_trees(panels_, title, lambda _, t: f"T = {t:g}")
      paths += save(fig, folder, metric)
  return paths


def write_drafters(folder, trees):
  """Writes block efficiencies as PNG and PDF, a panel for each drafter.

  Args:
    folder: Path to write to.
    trees: of `drafter_tables.compared`, a row of panels for each temperature.

  Returns:
    list of paths.
  """
  panels_ = text_tables.grouped(trees, "temperature", "drafter")
  if not panels_:
    return []
  fig = draw_trees(panels_, METRICS["block_efficiency"],
                   lambda t, name: f"{name}, T = {t:g}")
  return save(fig, folder, "drafters")


def write_by_category(folder, cells):
  """Writes the speed-up of methods by category, a panel for each temperature.

  Of each method it has the sizes that are fastest on all prompts.

  Args:
    folder: Path to write to.
    cells: of `record_figures.long_records`.

  Returns:
    list of paths; empty without categories, or where they were not timed.
  """
  timed = [r for r in text_tables.select(cells, metric="token_rate_ratio")
           if r["method"] != record_figures.PLAIN]
  if all(r["category"] == record_figures.ALL for r in timed):
    return []
  return save(draw_categories(timed), folder, "speed_up_by_category")


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


def draw_trees(chosen, title, describe):
  """Draws trees by their size, a line for each label.

  Args:
    chosen: dict from (row, column) to the trees of a panel, long records with
      `experiment` and `point`.
    title: of the vertical axes.
    describe: `(row, column) -> title`.

  Returns:
    The figure.
  """
  rows, columns = (list(dict.fromkeys(x)) for x in zip(*chosen))
  fig, axes = panels(len(rows), len(columns))
  by_label = styles(dict.fromkeys(
      r["label"] for trees in chosen.values() for r in trees))
  for (i, row), (j, column) in itertools.product(enumerate(rows),
                                                 enumerate(columns)):
    ax, trees = axes[i, j], chosen[row, column]
    for (label,), members in text_tables.grouped(trees, "label").items():
      found = _by_size(members)
      draw(ax, list(found), list(found.values()), label, by_label[label])
    experiment = trees[0]["experiment"]
    points = sorted({r["point"] for r in trees})
    if experiment == "budget":
      log_axis(ax, points)
    else:
      ax.set_xticks(points)
    _compare_with_1(ax)
    ax.set_title(describe(row, column), fontsize=10)
    ax.set_xlabel(POINTS[experiment])
    if not j:
      ax.set_ylabel(title)
  add_legend(fig)
  return fig


def _by_size(trees):
  """Returns a dict from sizes to figures, by rising size.

  A size is the nodes of a tree within a budget, else its point. Several points
  may have one tree: the best one within a budget of nodes may have fewer.
  """
  found = {}
  for r in trees:
    size = r["nodes"] if r["experiment"] == "budget" else r["point"]
    figure = [r["value"], r["low"], r["high"]]
    found[size] = max(found.get(size, figure), figure, key=lambda x: x[0])
  return dict(sorted(found.items()))


def draw_categories(cells):
  """Draws figures by category, the sizes of a method that have the largest one.

  Args:
    cells: of `record_figures.long_records`, of one metric.

  Returns:
    The figure.
  """
  panels_ = text_tables.grouped(cells, "temperature")
  fig, axes = panels(1, len(panels_))
  by_label = styles(dict.fromkeys(r["label"] for r in cells))
  for ax, ((temperature,), members) in zip(axes[0], panels_.items()):
    categories = list(dict.fromkeys(r["category"] for r in members))
    fastest = {}
    for r in text_tables.select(members, category=record_figures.ALL):
      fastest[r["label"]] = max(fastest.get(r["label"], r), r,
                                key=lambda r: r["value"])
    for i, (label, best) in enumerate(fastest.items()):
      found = text_tables.select(members, method=best["method"])
      shift = _SPREAD * ((i + 0.5) / len(fastest) - 0.5)
      draw(ax, [categories.index(r["category"]) + shift for r in found],
           [[r["value"], r["low"], r["high"]] for r in found], label,
           by_label[label], linestyle="none")
    ax.set_xticks(range(len(categories)), categories, rotation=30, ha="right")
    _compare_with_1(ax)
    ax.set_title(f"T = {temperature:g}", fontsize=10)
  axes[0, 0].set_ylabel("speed-up")
  add_legend(fig)
  return fig


def _compare_with_1(ax):
  ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
  ax.grid(axis="y", alpha=0.3)
