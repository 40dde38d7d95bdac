"""Figures by category of prompts."""

from experiments.evaluation import category_tables

RECORDS = [
    {"method": "autoregressive", "temperature": 0.0, "emitted": [6, 6, 4],
     "target_calls": [6, 6, 4], "speed": [1.0, 1.0, 1.0]},
    {"method": "suffix(2x2)", "temperature": 0.0, "emitted": [6, 6, 4],
     "target_calls": [2, 4, 4], "speed": [3.0, 1.2, 0.8]},
    {"method": "suffix(2x2)", "temperature": 1.0, "emitted": [1] * 3,
     "target_calls": [1] * 3}]


def test_figures_of_each_category_and_of_all():
  found = category_tables.rows(RECORDS, ["rag", "qa", "rag"], [0.0])
  head = ["qa", "rag", "all"]
  assert found == {
      ("tokens a call", 0.0): [
          ["tokens a call", *head],
          ["autoregressive", "1.00", "1.00", "1.00"],
          ["suffix(2x2)", "1.50", "1.67", "1.60"]],
      ("speed x AR", 0.0): [
          ["speed x AR", *head],
          ["autoregressive", "1.00", "1.00", "1.00"],
          ["suffix(2x2)", "1.20", "1.90", "1.20"]]}
  text = category_tables.terminal(found)
  assert "Tokens a target call, temperature 0\ntokens a call" in text
  assert "| suffix(2x2) | 1.20 | 1.90 | 1.20 |" in (
      category_tables.markdown(found))


def test_prompts_of_no_category_that_were_not_timed():
  assert not category_tables.rows(RECORDS, None, [1.0])
  found = category_tables.rows(RECORDS, None, [0.0])
  assert found["speed x AR", 0.0][2] == ["suffix(2x2)", "1.20"]
