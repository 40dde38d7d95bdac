"""Automata on disk: the same ones, by all that they depend on."""

import jax
import numpy as np
import pytest

from decoding_jax import processors
from decoding_jax.grammars import automaton_store

PIECES = [b"", *(bytes([byte]) for byte in range(128)), b"ab"]
SCHEMA = {"enum": ["ab", 3]}


def check_same(x, y):
  assert type(x) is type(y)
  jax.tree.map(np.testing.assert_array_equal, x, y)


@pytest.mark.parametrize("make, what", [
    (processors.json_schema, SCHEMA), (processors.choice, ["ab", "b"]),
    (processors.stop_strings, ["ab"])], ids=lambda x: getattr(
        x, "__name__", None))
def test_what_is_read_is_what_was_made(make, what, tmp_path):
  first, was_there = processors.stored(tmp_path / "new", make, what, PIECES, 0)
  assert not was_there
  check_same(first, make(what, PIECES, 0))
  again, was_there = processors.stored(tmp_path / "new", make, what, PIECES, 0)
  assert was_there
  check_same(again, first)


def test_whatever_differs_is_made_anew(tmp_path, monkeypatch):
  def was_there(what=SCHEMA, pieces=PIECES, eos_id=0, **options):
    return processors.stored(tmp_path, processors.json_schema, what, pieces,
                             eos_id, **options)[1]

  assert not was_there() and was_there()
  assert not was_there({"enum": ["ab", 4]})
  assert not was_there(pieces=[*PIECES, b"3"])
  assert not was_there(eos_id=(0, 5))
  assert not was_there(whitespace="")
  monkeypatch.setattr(automaton_store, "_source_digest", lambda: "newer")
  assert not was_there() and was_there()


def test_a_file_that_was_cut_short_is_replaced(tmp_path):
  make = lambda: processors.stored(tmp_path, processors.json_schema, SCHEMA,
                                   PIECES, 0)
  first, _ = make()
  [path] = tmp_path.iterdir()
  path.write_bytes(path.read_bytes()[:-30])
  again, was_there = make()
  assert not was_there and make()[1]
  check_same(again, first)
  with pytest.warns(UserWarning, match="cannot be kept"):
    again, was_there = processors.stored(path / "no_folder", processors.regex,
                                         "a", PIECES, 0)
  assert not was_there


def test_nothing_is_kept_of_what_fails(tmp_path):
  with pytest.raises(ValueError, match="cannot spell"):
    processors.stored(tmp_path, processors.choice, ["é"], PIECES, 0)
  assert not list(tmp_path.iterdir())
