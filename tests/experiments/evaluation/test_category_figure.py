"""The figure by category of prompts."""

from experiments.evaluation import category_figure
from experiments.evaluation import result_rows
from support import tiny_records


def _rows(categories):
  return result_rows.rows(tiny_records.records(), categories, [0.0],
                          tiny_records.RATIO)


def test_a_panel_has_all_categories_and_the_fastest_sizes():
  slow = tiny_records.record("speculative(4)", [9.0] * 3)
  rows = result_rows.rows([*tiny_records.records(), slow],
                          tiny_records.CATEGORIES, [0.0], tiny_records.RATIO)
  fig = category_figure._draw([row for row in rows if (
      row.method != result_rows.PLAIN)])
  ax, = fig.axes
  assert [x.get_text() for x in ax.get_xticklabels()] == ["qa", "rag", "all"]
  labels = ax.get_legend_handles_labels()[1]
  assert labels == ["SD", "RSD-C"]
  chain = ax.containers[labels.index("SD")].lines[0].get_ydata()
  assert [round(y, 2) for y in chain] == [1.67, 1.54, 1.58]


def test_files(tmp_path):
  paths = category_figure.write(tmp_path, _rows(tiny_records.CATEGORIES))
  assert [path.name for path in paths] == ["speed_up_by_category.png",
                                           "speed_up_by_category.pdf"]
  assert all(path.stat().st_size for path in paths)
  assert not category_figure.write(tmp_path, _rows(None))
