"""Flags that say what a completion must be."""

import string

from absl.testing import flagsaver
import jax
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import mesh
from experiments.flags import constraint_flags, grammar_engine
from models.text import tokenizers
from support import helpers, tiny_models as tiny

pytestmark = pytest.mark.usefixtures("parsed_flags")
NEW = 8


@pytest.fixture(name="applied")
def _applied(folders):
  """The pair, its models processed as flags say."""
  def of(eos_id=(0,), **values):
    pair = helpers.load_pair(*folders)._replace(eos_id=eos_id)
    with flagsaver.as_parsed(**values):
      return constraint_flags.apply(pair, tiny.PROMPTS.shape[1], NEW)

  return of


def completion(pair, new=NEW):
  """Bytes of a completion, and whether it has ended."""
  out = mesh.generate(
      pair, jax.random.split(jax.random.key(0), 1),
      tiny.PROMPTS[:1], tiny.LENGTHS[:1], method=dj.methods.speculative(2),
      max_new_tokens=new, sampling=dj.Sampling(), eos_id=pair.eos_id)
  pieces = tokenizers.pieces(pair.tokenizer, pair.target.vocab_size)
  [text] = tiny.texts(out, tiny.LENGTHS[:1])
  return b"".join(pieces[token] for token in text), text[-1] in pair.eos_id


@pytest.mark.long
def test_thinking_of_so_many_tokens(applied):
  """Here an end is a full stop, after two or three other tokens.

  A token may have two bytes.
  """
  pair = applied(think_at_least="2", think_at_most="3", end_of_thinking=".",
                 wait=",")
  text, _ = completion(pair)
  assert 2 <= text.index(b".") <= 6


def test_momentum_that_forbids_repetitions(applied):
  pair = applied(momentum="2", eos_id=())
  out = tiny.generate(dj.methods.autoregressive(), tiny.Models(
      tiny.Model(pair.target, pair.target_params), None), new=NEW,
                      sampling=dj.Sampling(temperature=0))
  for text in tiny.texts(out, tiny.LENGTHS):
    assert len(set(text)) == NEW


def test_a_line_while_it_takes_long(applied, monkeypatch, capsys):
  class Impatient:
    """A timer whose time is up at once."""

    def __init__(self, seconds, function):
      assert seconds == 2
      self.start, self.cancel = function, lambda: None

  assert applied(stop=["x"]) and not capsys.readouterr().err
  monkeypatch.setattr(constraint_flags.threading, "Timer", Impatient)
  applied(stop=["x"])
  assert capsys.readouterr().err == "compiling the automaton of --stop...\n"


def test_without_flags_the_pair_is_as_it_was(applied, folders):
  pair = helpers.load_pair(*folders)
  assert applied(pair.eos_id).target is pair.target


@pytest.mark.parametrize("flag, text, texts", [
    ("regex", "", {f"{first}z{last}" for first in "xy" for last in range(10)}),
    ("json_schema", '{"enum": ["ab"]}', {'"ab"'}),
    ("choices", "x1\nx2\n\nyy\n", {"x1", "x2", "yy"})])
def test_what_a_completion_must_be(applied, tmp_path, flag, text, texts):
  path = tmp_path / "file"
  path.write_text(text)
  written, ended = completion(applied(**{flag: str(path) if text else
                                         "[xy]z[0-9]"}))
  assert ended and written.decode() in texts


@pytest.mark.long
def test_a_grammar_in_a_file(applied, tmp_path, capsys):
  pytest.importorskip("llguidance")
  pytest.importorskip("xgrammar")
  path = tmp_path / "grammar"
  for text, engine in (
      ('// Not root ::= x.\nstart: "[" start? "]"', "llguidance"),
      ('# Brackets.\nroot   ::= "[" inner\ninner  ::= root? "]"', "xgrammar")):
    path.write_text(text)
    pair = applied(grammar=str(path))
    result, ended = completion(pair)
    assert not ended or result.count(b"[") == result.count(b"]")
    assert set(result) <= set(b"[]") and result[:1] == b"["
    assert capsys.readouterr().err == f"grammar: {engine}\n"
    assert grammar_engine.report(pair.target_params).startswith(
        "grammar on the host: ")
  with pytest.raises(launch.UserError, match="automaton: it does not read"):
    applied(grammar=str(path), grammar_engine="automaton")


def test_an_engine_for_what_has_no_automaton(applied, tmp_path, capsys):
  pytest.importorskip("llguidance")
  path = tmp_path / "schema.json"
  path.write_text('{"type": "number", "multipleOf": 0.25}')
  pair = applied(json_schema=str(path))
  assert grammar_engine.report(pair.target_params)
  assert "llguidance, since there is no automaton: schema at #: multiples" in (
      capsys.readouterr().err)
  with pytest.raises(launch.UserError, match="multiples of 0.25 are not"):
    applied(json_schema=str(path), grammar_engine="automaton")
  path.write_text('{"enum": ["ab"]}')
  pair = applied(json_schema=str(path), grammar_engine="llguidance")
  assert completion(pair) == (b'"ab"', True)
  assert not grammar_engine.report(applied(json_schema=str(path)).target_params)


def test_automata_that_take_long_are_kept(applied, tmp_path, capsys,
                                          monkeypatch):
  monkeypatch.setattr(grammar_engine, "_LEAST_SECONDS", 0.0)
  path = tmp_path / "schema.json"
  path.write_text('{"enum": ["ab"]}')
  for how in ("compiled", "read from disk"):
    pair = applied(json_schema=str(path), grammar_cache=str(tmp_path / "kept"))
    assert f"an automaton of 6 states, {how} in" in capsys.readouterr().err
  assert completion(pair) == (b'"ab"', True)


def test_stop_strings_and_a_penalty(applied):
  pair = applied(stop=list(string.printable), repetition_penalty="1.5")
  text, ended = completion(pair, 24)
  assert ended and set(string.printable.encode()) & set(text)
  assert isinstance(pair.target_params.model, dj.processors.AppliedParams)


def ends(pair, text):
  ids = pair.tokenizer.encode(text).ids
  return tuple(bool(x[0]) for x in grammar_engine.ends(pair, [ids]))


def test_texts_that_are_complete_at_the_budget(applied, tmp_path):
  """They may end there, or must since nothing else may follow."""
  assert ends(applied(), "x") == (False, False)
  pair = applied(stop=["xy"], repetition_penalty="1.5")
  assert ends(pair, "axy") == (True, True) and not all(ends(pair, "yx"))
  path = tmp_path / "names"
  path.write_text("x1\nx12\n")
  pair = applied(choices=str(path))
  assert [ends(pair, x) for x in ("x", "x1", "x12", "y")] == [
      (False, False), (True, False), (True, True), (False, False)]


@pytest.mark.parametrize("engine", ["automaton", "llguidance"])
def test_patterns_that_are_complete_at_the_budget(applied, engine):
  if engine != "automaton":
    pytest.importorskip(engine)
  pair = applied(regex="x+y?", grammar_engine=engine)
  assert [ends(pair, x) for x in ("x", "xxy", "y")] == [
      (True, False), (True, True), (False, False)]


@pytest.mark.long
def test_no_token_twice(applied):
  pair = applied(regex="[xy]{2}", no_repeat_ngram_size="1",
                 presence_penalty="1.5", frequency_penalty="0.5")
  text, ended = completion(pair)
  assert ended and sorted(text) == sorted(b"xy")
  text, ended = completion(applied(regex="x{3}", no_repeat_ngram_size="1"))
  assert ended and text == b"xxx"


@pytest.mark.parametrize("values, message", [
    (dict(regex="a", stop=["b"]), "--regex and --stop: only one of them"),
    (dict(regex="a", eos_id=None), "--regex: the tokenizer has no token that"),
    (dict(stop=[""]), "--stop='': a list of at least one"),
    (dict(json_schema="/nowhere.json"), "--json_schema=/nowhere.json: No such"),
    (dict(repetition_penalty="0"), "--repetition_penalty=0.0: a positive num"),
    (dict(think_at_least="2", end_of_thinking=""), "--end_of_thinking=: a tex"),
    (dict(think_at_least="2", wait="zq"), "--wait=zq: a text of one token is"),
    (dict(think_at_least="2", think_at_most="1"), "maximum=1: at least minim"),
    (dict(regex="("), r"--regex=\(: missing \)"),
    (dict(regex="^abc$"), r"--regex=\^abc\$: .* end to end"),
    (dict(regex="a(?=b)"), r"--regex=a\(\?=b\): look-around"),
    (dict(regex="a" * 10**5), r"--regex=a{80}\.\.\.: more than 100000 parts"),
    (dict(stop=["x" * 10**5]), r"--stop='x{79}\.\.\.: an automaton of 100002"),
    (dict(regex="a\udcff"), r"--regex=a.udcff: character 1 is .* surrogate"),
    (dict(no_repeat_ngram_size="1000000"),
     "--no_repeat_ngram_size=1000000: at most 131072 tokens"),
], ids=lambda x: str(x)[:40])
def test_flags_that_cannot_be(applied, values, message):
  with pytest.raises(launch.UserError, match=message):
    applied(**values)


def test_a_file_that_has_no_schema(applied, tmp_path):
  path = tmp_path / "schema.json"
  for schema, message in (
      ("{", "Expect"), ('{"type": "array", "contains": true}',
                        "schema at #: 'contains' is not supported"),
      ('{"multipleOf": -1}', "schema at #: 'multipleOf' is -1: a number abo")):
    path.write_text(schema)
    with pytest.raises(launch.UserError,
                       match=f"_schema={str(path)[:40]}.*: {message}"):
      applied(json_schema=str(path))
