"""Draws the figures of an experiment, as PNG and PDF files."""

import io
import itertools
from typing import Any, NamedTuple

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


class Panel(NamedTuple):
  """A panel of a figure.

  Attributes:
    series: dict from labels to lists of (place, [value, low, high]).
    title: above it.
    x_title: of its horizontal axis.
    ticks: places with a number, or a dict from places to texts; None for the
      usual ones.
    log: whether the horizontal axis is logarithmic.
  """
  series: dict[str, list]
  title: str = ""
  x_title: str = ""
  ticks: Any = None
  log: bool = False


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
    panels = text_tables.grouped(text_tables.select(trees, metric=metric),
                                 "experiment", "temperature")
    if panels:
      fig = chart({place: of_trees(f"T = {place[1]:g}", some)
                   for place, some in panels.items()}, title, 1)
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
  panels = text_tables.grouped(trees, "temperature", "drafter")
  if not panels:
    return []
  return save(chart({(t, name): of_trees(f"{name}, T = {t:g}", some)
                     for (t, name), some in panels.items()},
                    METRICS["block_efficiency"], 1), folder, "drafters")


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
  panels = {(0, t): of_categories(f"T = {t:g}", some) for (t,), some in (
      text_tables.grouped(timed, "temperature").items())}
  return save(chart(panels, "speed-up", 1, linestyle="none"), folder,
              "speed_up_by_category")


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


def chart(panels, y_title, baseline=None, width=3.2, **style):
  """Draws panels of one scale, with a legend of all labels above them.

  Args:
    panels: dict from (row, column) to a `Panel`.
    y_title: of the vertical axes.
    baseline: value with a dotted line, or None.
    width: of a panel, in inches.
    **style: of `errorbar`.

  Returns:
    The figure; its axes are in the order of rows and columns.
  """
  # Imported here to start runs half a second earlier. No pyplot: it would look
  # for a display.
  from matplotlib import figure  # pylint: disable=import-outside-toplevel
  rows, columns = (list(dict.fromkeys(x)) for x in zip(*panels))
  fig = figure.Figure(
      figsize=(1 + width * len(columns), 0.8 + 2.9 * len(rows)),
      layout="constrained")
  axes = fig.subplots(len(rows), len(columns), squeeze=False, sharey=True)
  by_label = styles(dict.fromkeys(
      label for panel in panels.values() for label in panel.series))
  for ax, place in zip(axes.flat, itertools.product(rows, columns)):
    panel = panels[place]
    for label, points in panel.series.items():
      draw(ax, *zip(*points), label, by_label[label], **style)
    if panel.log:
      log_axis(ax, panel.ticks)
    elif panel.ticks:
      texts = panel.ticks.values() if isinstance(panel.ticks, dict) else None
      ax.set_xticks(list(panel.ticks), texts, **(
          {"rotation": 30, "ha": "right"} if texts else {}))
    if baseline is not None:
      ax.axhline(baseline, color="black", linewidth=0.8, linestyle=":")
    ax.grid(axis="y" if baseline is not None else "both", alpha=0.3)
    ax.set_title(panel.title, fontsize=10)
    ax.set_xlabel(panel.x_title)
  for ax in axes[:, 0]:
    ax.set_ylabel(y_title)
  add_legend(fig)
  return fig


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


def of_trees(title, trees) -> Panel:
  """Returns the panel of trees by their size, a line for each label.

  A size is the nodes of a tree within a budget, else its point. Several points
  may have one tree: the best one within a budget of nodes may have fewer.

  Args:
    title: of the panel.
    trees: of `tree_tables.best`, of one experiment.
  """
  within = trees[0]["experiment"] == "budget"
  series = {}
  for r in trees:
    sizes = series.setdefault(r["label"], {})
    size = r["nodes"] if within else r["point"]
    figure = text_tables.figure(r)
    sizes[size] = max(sizes.get(size, figure), figure, key=lambda x: x[0])
  return Panel({x: sorted(sizes.items()) for x, sizes in series.items()}, title,
               POINTS[trees[0]["experiment"]],
               sorted({r["point"] for r in trees}), within)


def of_categories(title, cells) -> Panel:
  """Returns the panel of figures by category, methods side by side.

  Args:
    title: of the panel.
    cells: of `record_figures.long_records`, of one metric.
  """
  places = {x: i for i, x in enumerate(dict.fromkeys(
      r["category"] for r in cells))}
  fastest = {}
  for r in text_tables.select(cells, category=record_figures.ALL):
    fastest[r["label"]] = max(fastest.get(r["label"], r), r,
                              key=lambda r: r["value"])
  series = {}
  for i, (label, best) in enumerate(fastest.items()):
    shift = _SPREAD * ((i + 0.5) / len(fastest) - 0.5)
    series[label] = [(places[r["category"]] + shift, text_tables.figure(r))
                     for r in text_tables.select(cells, method=best["method"])]
  return Panel(series, title, ticks={i: x for x, i in places.items()})
