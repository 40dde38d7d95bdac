"""What steps of many rows cost."""

import types

import pytest

from experiments.app import launch
from experiments.app import method_specs
from experiments.timing import row_costs
from support import tiny_models as tiny


def kinds(spec, rows):
  return row_costs.forwards(spec, method_specs.read(spec), rows)


def test_forwards_of_a_step():
  assert kinds("speculative(2)", 4) == [
      ("target", 3, 0), ("draft", 2, 0), ("draft", 1, 0)]
  # The whole beam is drafted; of it eight nodes are scored.
  assert kinds("opt_tree(8, 4, 3)", 4) == [
      ("target", 9, 0), ("draft", 2, 0), ("draft", 4, 0), ("draft", 4, 0)]
  # Room for seven nodes of a row, and so many tokens of all: 4 + 6.
  assert kinds("shared_budget(1.5, 4, 2)", 4) == [
      ("target", 8, 10), ("draft", 2, 0), ("draft", 4, 0)]


def test_forwards_are_timed():
  models = tiny.llama_models()
  pair = types.SimpleNamespace(
      target=models.target.lm, target_params=models.target.params,
      draft=models.draft.lm, draft_params=models.draft.params)
  used = [("target", 1, 0), ("target", 3, 4), ("draft", 2, 0)]
  found = row_costs.timed(pair, 3, 16, 2, used)
  assert list(found) == used and min(found.values()) > 0


def test_cycles_between_two_that_are_known():
  lines = [dict(rows=rows, tokens=tokens, room=room, cycles=cycles)
           for rows, tokens, room, cycles in (
               (4, 1, 0, 100), (4, 9, 0, 300), (4, 5, 8, 140), (4, 8, 0, 170),
               (8, 1, 0, 7))]
  assert row_costs.saved(lines, 4, [
      row_costs.PLAIN, ("target", 9, 0), ("target", 8, 12), ("target", 8, 28),
      ("draft", 2, 0)
  ]) == {row_costs.PLAIN: 100, ("target", 9, 0): 300, ("target", 8, 12): 120,
         ("target", 8, 28): 160, ("draft", 2, 0): 0}
  for rows, kind, error in (
      (4, ("target", 10, 0), "no cycles of 10 tokens in each of 4 rows"),
      (4, ("target", 16, 12), "3 tokens in each of 4 rows, with room for 16"),
      (2, row_costs.PLAIN, "no cycles of 1 tokens in each of 2 rows")):
    with pytest.raises(launch.UserError, match=error):
      row_costs.saved(lines, rows, [kind])
