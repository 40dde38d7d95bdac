"""Rows of results, and verdicts on speed."""

import pytest

from experiments.evaluation import result_rows
from support import tiny_records


def _rows(categories=tuple(tiny_records.CATEGORIES)):
  return result_rows.rows(tiny_records.records(),
                          categories and list(categories), [0.0],
                          tiny_records.RATIO)


def test_a_row_for_each_category_and_one_for_all():
  found = _rows()
  assert [(row.method, row.category, row.prompts) for row in found[:4]] == [
      ("autoregressive", "qa", 1), ("autoregressive", "rag", 2),
      ("autoregressive", "all", 3), ("speculative(2)", "qa", 1)]
  assert len(found) == 9
  chain = found[3:6]
  assert [row.figures["block_efficiency"][0] for row in chain] == [
      1.5, pytest.approx(10 / 6, abs=1e-6), 1.6]
  assert chain[2].nodes == chain[2].depth == 2


def test_prompts_of_no_category():
  assert {row.category for row in _rows(None)} == {"all"}


def test_other_temperatures_are_left_out():
  assert not result_rows.rows(tiny_records.records(), None, [1.0], 0)


@pytest.mark.parametrize("ratio, verdict", [
    ([1.5, 1.1, 1.9], "faster"), ([0.8, 0.7, 0.99], "slower"),
    ([1.1, 0.9, 1.3], "no difference"), ([2.0, None, None], None)], ids=str)
def test_verdicts(ratio, verdict):
  row = _rows()[-1]._replace(figures={"token_rate_ratio": ratio})
  assert result_rows.against_plain(row) == verdict
  assert result_rows.against_plain(row._replace(
      method="autoregressive")) is None
  assert result_rows.against_plain(row._replace(figures={})) is None


def test_names_without_options_where_these_tell_nothing_apart():
  rows = [_rows()[0]._replace(method=name) for name in (
      "suffix(8x4, paths=16, p=0.1)", "rsd_s(2x2, traversal)",
      "cdsl(3, a=1)", "cdsl(3, a=2)")]
  assert list(result_rows.short_names(rows).values()) == [
      "suffix(8x4)", "rsd_s(2x2, traversal)", "cdsl(3, a=1)", "cdsl(3, a=2)"]
