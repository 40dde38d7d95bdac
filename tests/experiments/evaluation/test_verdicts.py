"""Sentences about speed."""

from experiments.evaluation import result_rows
from experiments.evaluation import verdicts
from support import tiny_records


def _rows(*records):
  return result_rows.rows(records or tiny_records.records(), None, [0.0, 1.0],
                          tiny_records.RATIO)


def test_the_fastest_and_the_slower_ones():
  assert verdicts.lines(_rows()) == [
      "Temperature 0: speculative(2) is the fastest, at 1.58 [1.25, 2.00] "
      "times the rate of plain decoding (8 tokens/s). Slower than plain "
      "decoding: rsd_c(2-1) (0.63)."]


def test_where_nothing_is_faster_it_is_said():
  line, = verdicts.lines(_rows(tiny_records.record("rsd_s(2x2)", [1.1] * 3)))
  assert line.startswith("Temperature 0: no method is measurably faster than "
                         "plain decoding; rsd_s(2x2) is the fastest, at 0.91")
  line, = verdicts.lines(_rows(tiny_records.record("rsd_s(2x2)",
                                                   [0.8, 1.3, 0.8])))
  assert "no method is measurably faster" in line and "Slower" not in line


def test_many_slower_methods_are_counted():
  many = [tiny_records.record(f"rsd_s({n}x2)", [n] * 3) for n in range(2, 10)]
  line, = verdicts.lines(_rows(*many))
  assert line.endswith("Slower than plain decoding: 8 of 8 methods, down to "
                       "rsd_s(9x2) (0.11).")


def test_each_temperature_has_a_line():
  warm = tiny_records.record("speculative(2)", [0.5] * 3, temperature=1.0)
  assert [line[:14] for line in verdicts.lines(_rows(
      *tiny_records.records(), warm))] == ["Temperature 0:", "Temperature 1:"]
  assert not verdicts.lines(_rows(tiny_records.records()[0]))


def test_why_trees_are_slow():
  text = verdicts.why_slow(_rows(), 3.2e6)
  assert "3.2 M parameters" in text and verdicts.WHERE_TREES_PAY in text
  # Large targets, fast trees and chains have other reasons, or need none.
  assert not verdicts.why_slow(_rows(), 135e6)
  assert not verdicts.why_slow(_rows(*tiny_records.records()[:2]), 3.2e6)
