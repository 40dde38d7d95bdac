"""Tests of the loop of cells: what it says before and after the first."""

import functools

from experiments.harness import cells


def _run(path, names, **more):
  return cells.run([
      cells.Cell({"name": x}, lambda *_, x=x: {"value": len(x)}, x,
                 functools.partial(len, x)) for x in names],
      path, "value", **more)


def test_a_start_says_what_is_to_do_and_how_long_it_takes(tmp_path, capsys):
  path, first = tmp_path / "results.jsonl", {"plain": int}
  assert len(_run(path, ["plain"], first=first, shapes=2)) == 1
  errors = capsys.readouterr().err
  assert "1 cell of 1 to measure, 2 programs to compile" in errors
  assert "min are left" not in errors  # There are none.
  records = _run(path, ["plain", "a", "bb", "ccc"], first=first, shapes=2)
  assert [x["value"] for x in records] == [5, 1, 2, 3]
  errors = capsys.readouterr().err
  assert "3 cells of 4 to measure, 8 programs to compile" in errors
  assert errors.count("about 0 min are left: 2 times 0.0 s and 2 times") == 1
  _run(path, ["plain"], first=first)
  assert "to measure" not in capsys.readouterr().err
