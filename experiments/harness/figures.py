"""Draws panels of figures with intervals, as PNG and PDF files."""

import itertools
from typing import Any, NamedTuple

# Okabe and Ito's colours, distinct to most colour-blind people.
_STYLES = {"SD": ("#666666", "o"), "SpecTr": ("#E69F00", "s"),
           "SpecInfer": ("#56B4E9", "D"), "RSD-C": ("#009E73", "^"),
           "RSD-S": ("#D55E00", "v")}
# For others: the rest of them, and then Tol's, darker ones.
_COLORS = ("#CC79A7", "#0072B2", "#000000", "#999933", "#D55E00", "#009E73",
           "#E69F00", "#56B4E9", "#666666", "#882255", "#332288", "#8C510A",
           "#AA4499", "#117733", "#DDCC77", "#CC6677")
# Their number has no divisor in common with the colours', so that pairs do
# not repeat soon.
_MARKERS = "PX*pdosD^v<"
_DPI = 100


class Panel(NamedTuple):
  """A panel of a figure."""
  series: dict[str, list]  # Label -> (x, [value, low, high]) of each point.
  title: str = ""
  x_title: str = ""
  # Positions with a number, or position -> text; None for the usual ones.
  ticks: Any = None
  log: bool = False  # A logarithmic horizontal axis.


def write(folder, name, panels, y_title, **options) -> None:
  """Writes a `chart` as PNG and PDF; nothing without panels."""
  if panels:
    fig = chart(panels, y_title, **options)
    fig.savefig(folder / f"{name}.png", dpi=_DPI)
    fig.savefig(folder / f"{name}.pdf")


def chart(panels, y_title, baseline=None, **style):
  """Draws panels, (row, column) -> `Panel`, with a legend of all labels.

  `baseline` has a dotted line; `style` is of `errorbar`. The figure's axes are
  in the order of rows and columns.
  """
  # Imported here to start runs half a second earlier. No pyplot: it would look
  # for a display.
  from matplotlib import figure  # pylint: disable=import-outside-toplevel
  rows, columns = (list(dict.fromkeys(x)) for x in zip(*panels))
  fig = figure.Figure(
      figsize=(1 + 3.2 * len(columns), 0.8 + 2.9 * len(rows)),
      layout="constrained")
  axes = fig.subplots(len(rows), len(columns), squeeze=False, sharey=True)
  by_label = styles(dict.fromkeys(
      label for panel in panels.values() for label in panel.series))
  for ax, at in zip(axes.flat, itertools.product(rows, columns)):
    _draw_panel(ax, panels.get(at, Panel({})), by_label, style)
    ax.grid(axis="y" if baseline is not None else "both", alpha=0.3)
    if baseline is not None:
      ax.axhline(baseline, color="black", linewidth=0.8, linestyle=":")
  for ax in axes[:, 0]:
    ax.set_ylabel(y_title)
  _add_legend(fig)
  return fig


def styles(labels):
  """Returns label -> (color, marker); 16 colours are distinct."""
  used = {_STYLES[label][0] for label in labels if label in _STYLES}
  others = zip(itertools.cycle(x for x in _COLORS if x not in used),
               itertools.cycle(_MARKERS))
  return {label: _STYLES.get(label) or next(others) for label in labels}


def _draw_panel(ax, panel, by_label, style):
  for label, points in panel.series.items():
    x, figures = zip(*points)
    color, marker = by_label[label]
    # A percentile interval need not hold the figure itself.
    bars = [[0 if low is None else max(0, value - low)
             for value, low, _ in figures],
            [0 if high is None else max(0, high - value)
             for value, _, high in figures]]
    ax.errorbar(x, [value for value, _, _ in figures], yerr=bars, label=label,
                color=color, marker=marker, markersize=4, elinewidth=1,
                **{"linewidth": 1, **style})
  if panel.log:
    from matplotlib import ticker  # pylint: disable=import-outside-toplevel
    ax.set_xscale("log")
    # Plain numbers, such as 2, 5, 10.
    ax.xaxis.set_major_locator(ticker.FixedLocator(panel.ticks) if panel.ticks
                               else ticker.LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter("{x:,.12g}")
    ax.xaxis.set_minor_locator(ticker.NullLocator())
  elif panel.ticks:
    texts = panel.ticks.values() if isinstance(panel.ticks, dict) else None
    ax.set_xticks(list(panel.ticks), texts, **(
        {"rotation": 30, "ha": "right"} if texts else {}))
  ax.set_title(panel.title, fontsize=10)
  ax.set_xlabel(panel.x_title)


def _add_legend(fig):
  """Puts the labels of all panels above them, each once."""
  handles = {label: handle for ax in fig.axes for handle, label in zip(
      *ax.get_legend_handles_labels())}
  if not handles:
    return
  # An inch holds about eleven letters; a marker is as wide as six.
  fitting = int(11 * fig.get_figwidth() / (6 + max(map(len, handles))))
  fig.legend(handles.values(), handles, loc="outside upper center",
             ncols=max(1, min(len(handles), fitting)), frameon=False)
