"""The figures of an experiment."""

from experiments.app import text_tables
from experiments.evaluation import tree_tables
from experiments.harness import figures


def _tree(experiment, point, label, nodes, value):
  return {"experiment": experiment, "point": point, "label": label,
          "temperature": 1.0, "nodes": nodes, "metric": "mbsu", "value": value,
          "low": None, "high": None}


def _series(ax):
  """The lines of a panel: dict from labels to (x, y, color)."""
  handles, labels = ax.get_legend_handles_labels()
  return {label: (handle.lines[0].get_xdata().tolist(),
                  handle.lines[0].get_ydata().tolist(),
                  handle.lines[0].get_color())
          for handle, label in zip(handles, labels)}


def test_trees_are_drawn_where_they_are():
  """At their depth or number of nodes, which may be less than the budget."""
  trees = [_tree("length", 2, "SD", 2, 1.5), _tree("length", 4, "SD", 4, 2.0),
           _tree("length", 2, "RSD-S", 9, 1.75),
           *(_tree("budget", n, "SD", 5, 2.5) for n in (8, 64)),
           *(_tree("budget", n, "new", n - 1, n / 8) for n in (64, 8))]
  fig = figures.chart({place: tree_tables.panel("", some) for place, some in (
      text_tables.grouped(trees, "temperature", "experiment").items())}, "MBSU")
  length, budget = map(_series, fig.axes)
  assert length["SD"][:2] == ([2, 4], [1.5, 2])
  assert length["RSD-S"][:2] == ([2], [1.75])
  assert budget["SD"][:2] == ([5], [2.5])
  assert budget["new"][:2] == ([7, 63], [1, 8])
  # A method has one colour in all panels, and the legend has all methods.
  assert length["SD"][2] == budget["SD"][2]
  assert len({x[2] for x in (*length.values(), *budget.values())}) == 3
  assert [x.get_text() for x in fig.legends[0].texts] == ["SD", "RSD-S", "new"]
  fig.draw_without_rendering()
  assert [x.get_text() for x in fig.axes[1].get_xticklabels()] == ["8", "64"]
  assert [x.get_text() for x in fig.axes[0].get_xticklabels()] == ["2", "4"]
