"""Patterns, schemas and stop strings of any size are compiled, or refused."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax import processors
from decoding_jax.processors import penalties
from decoding_jax.processors import regex_size
from decoding_jax.processors import regex_syntax
from decoding_jax.processors import token_automaton

EOS = 256
PIECES = [*(bytes([byte]) for byte in range(EOS)), b""]
NULL = {"type": "null"}


def matches(automaton, text):
  """Whether an automaton over bytes allows a whole text."""
  state = 0
  for token in [*text.encode(), EOS]:
    state = automaton.following[state, automaton.classes[token]]
    if state < 0:
      return False
  return True


@pytest.mark.parametrize("pattern, length", [
    ("ab|c", 3), ("a{3}", 3), ("(a|bc){2,5}", 15), ("(a{2}b*){3,}", 9),
    ("a*", 1), ("(a?){500}a{500}", 1000), (r"[^]x]{4}\w\x{41}", 6),
    (r"[[:alpha:]\]&&[a-z]]+", 1), ("(?:a|(?P<n>b)){2}", 4), ("x{,3}", 5)])
def test_lengths_with_repetitions_written_out(pattern, length):
  assert regex_size.length(pattern) == length


@pytest.mark.parametrize("pattern", [")", "(", "a|(b", "*", "(*)"])
def test_wrong_patterns_have_no_structure(pattern):
  assert regex_syntax.parse(pattern) is None


@pytest.mark.parametrize("pattern", [
    "[a-c]{2,5}x", "(ab|c)*d?", "(a|b)*a(a|b){6}", "x{300}", "(a?){20}a{20}",
    r"\d{3}", r"\w{2}", ".{4}", '"([^"]|x["y]){0,20}"'])
def test_estimates_of_states_and_transitions(pattern):
  """Against the automaton; that of bytes may share states, or have more."""
  pytest.importorskip("outlines_core")
  size = regex_size.check("pattern", pattern, PIECES)
  found = processors.regex(pattern, PIECES, EOS)
  states = len(found.following)
  transitions = (found.following[:, found.classes] >= 0).sum()
  assert states / 2 <= size.states + 2 <= 3 * states
  assert transitions / 2 <= size.transitions <= 8 * transitions


@pytest.mark.parametrize("pattern, words", [
    ("(a|b)*a(a|b){40}", "an automaton of more than 20000 states, the limit"),
    (".*a.{20}", "more than 20000 states"), (r"\w{100}", "more than 20000"),
    ("a{1000000000}", "1000000000 characters .* written out: at most 20000"),
    ("((a{99}){99}){99}", "970299 characters with its repetitions"),
    ("a{" + "9" * 5000 + "}", "characters with its repetitions"),
    ("(){1000000000}", "1000000000 characters with its repetitions"),
    ("((a?){140}){140}", "more than 1000000 steps to count the states"),
    ("a" * 100_000, "100000 characters .* at most 20000"),
    ("(" * 1000 + ")" * 1000, "nested 201 deep: at most 200"),
    ("a" + "*" * 1000, "nested 201 deep: at most 200"),
    ("a\ud800b", "character 1 is '.ud800', half of a surrogate pair"),
    (3, "3: a text is needed")], ids=lambda x: str(x)[:20])
def test_patterns_that_are_refused(pattern, words):
  pytest.importorskip("outlines_core")
  with pytest.raises(ValueError, match=f"^pattern=.*{words}") as error:
    processors.regex(pattern, PIECES, EOS)
  assert len(str(error.value)) < 300
  assert "\n" not in str(error.value)


def test_memory_of_transitions_is_limited(monkeypatch):
  pytest.importorskip("outlines_core")
  monkeypatch.setattr(regex_size, "MAX_BYTES", 10**4)
  with pytest.raises(ValueError, match=r"of \d+ states .* transitions by "
                     r"tokens, and take .* GiB to compile: at most 0\.0 GiB"):
    processors.regex("[a-z]{10}x", [x * 9 for x in PIECES[:-1]] + PIECES, EOS)
  processors.regex("x{10}", PIECES, EOS)


@pytest.mark.parametrize("pattern, texts, others", [
    ("(a?){500}a{500}", ["a" * 500, "a" * 1000], ["a" * 499, "a" * 1001]),
    ('"(x|y["z]){0,60}"', ['"' + 'xy"' * 30 + '"'], ['"' + "x" * 61 + '"']),
    ("(a|b)*a(a|b){9}", ["a" * 10, "b" + "a" * 10], ["b" * 10])])
def test_patterns_that_took_no_end(pattern, texts, others):
  pytest.importorskip("outlines_core")
  automaton = processors.regex(pattern, PIECES, EOS)
  assert all(matches(automaton, text) for text in texts)
  assert not any(matches(automaton, text) for text in others)


@pytest.mark.parametrize("pattern", [
    ".+", "(?s).+", "(?s:.)x.", "[^b]{1,3}", r"\W\D", r"[\S\n]+",
    "[[:^alpha:]]", r"\PL+", "(?i)AB?", "[]a]+", r"a[^\]]*", "(a|(?-s:.))b"])
def test_classes_keep_all_characters_but_nul(pattern):
  """Against `re`; patterns are changed before they are compiled."""
  pytest.importorskip("outlines_core")
  automaton = processors.regex(pattern, PIECES, EOS)
  python = pattern.replace("[[:^alpha:]]", "[^a-zA-Z]").replace(
      r"\PL", r"[\W\d_]")
  alphabet = ["a", "b", "]", "\n", "1", "é", "中", "x"]
  texts = ["", *(x + y + z for x in alphabet for y in ["", *alphabet]
                 for z in ["", *alphabet])]
  expected = [bool(re.fullmatch(python, text)) for text in texts]
  assert [matches(automaton, text) for text in texts] == expected
  assert any(expected) and not all(expected)


def references(depth):
  """A schema that has 2^depth parts, its references written out."""
  return {"$ref": "#/$defs/d0", "$defs": {
      f"d{i}": {"prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2}
      for i in range(depth)} | {f"d{depth}": NULL}}


def nested(depth, inner=None):
  found = inner or NULL
  for _ in range(depth):
    found = {"type": "array", "items": found}
  return found


def endless():
  found = {"type": "array"}
  found["items"] = found
  return found


@pytest.mark.cases(3)
@pytest.mark.parametrize("make, words", [
    (lambda: {"type": "array", "items": NULL, "minItems": 5 * 10**6},
     "more than 160000 parts to put together"),
    (lambda: references(40), "more than 160000 parts to put together"),
    (lambda: nested(1000), "nested more than 100 levels deep, the limit"),
    (lambda: '{"items":' * 1000 + "{}" + "}" * 1000, "nested .* 100 levels"),
    (lambda: "[" * 100_000, "nested .* 100 levels"),
    (lambda: {"enum": [json.loads("[" * 200 + "]" * 200)]}, "100 levels"),
    (endless, "nested more than 100 levels"),
    (lambda: {"$ref": "#/$defs/0", "$defs": {
        str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(2000)}},
     "nested too deep: at most 100 levels"),
    (lambda: {"enum": list(range(10**5))}, "more than 160000 parts to put"),
    (lambda: {"oneOf": [{"minimum": i} for i in range(3000)]},
     "18000 alternatives to tell apart: at most 200"),
    (lambda: {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(9)]}
                        for i in range(9)], "type": "object"},
     "more than 400 combinations"),
    (lambda: {"properties": {str(i): {"pattern": "^a{1500}$"}
                             for i in range(30)}}, "more than 20000 states"),
])
def test_schemas_that_are_refused(make, words):
  with pytest.raises(ValueError, match=f"^schema.*{words}") as error:
    processors.json_schema(make(), PIECES, EOS)
  assert len(str(error.value)) < 400


def test_schemas_that_took_no_end():
  automaton = processors.json_schema({"type": "string", "maxLength": 200},
                                     PIECES, EOS)
  assert matches(automaton, '"' + 'x\\"' * 100 + '"')
  assert not matches(automaton, '"' + 'x\\"' * 100 + 'x"')
  automaton = processors.json_schema(references(3), PIECES, EOS)
  text = "null"
  for _ in range(3):
    text = f"[{text}, {text}]"
  assert matches(automaton, text)
  automaton = processors.json_schema(nested(20), PIECES, EOS)
  assert matches(automaton, "[" * 20 + "null, null" + "]" * 20)


def test_stop_strings_of_many_bytes():
  with pytest.raises(ValueError, match=(
      r"^strings=\['xxx.*xxx'\]: an automaton of 100002 states: at most 20000"
  )):
    processors.stop_strings(["x" * 100_000], PIECES, EOS)
  with pytest.raises(ValueError, match="half of a surrogate pair"):
    processors.stop_strings(["a", "\ud800"], PIECES, EOS)
  automaton = processors.stop_strings(["x" * 2000, "xy"], PIECES, EOS)
  assert matches(automaton, "x" * 2000) and matches(automaton, "xxxy")
  assert not matches(automaton, "x" * 2001)
  assert not matches(automaton, "xxxyx")


def test_memory_of_stop_strings_is_limited(monkeypatch):
  monkeypatch.setattr(token_automaton, "MAX_BYTES", 10**5)
  with pytest.raises(ValueError, match=r"an automaton of 32 states would take "
                     r".* GiB: at most 0\.0 GiB"):
    processors.stop_strings(["x" * 30], PIECES, EOS)
  with pytest.raises(ValueError, match="300 states and 300 classes of tokens "
                     "takes .* GiB: at most"):
    processors.table(np.random.default_rng(0).integers(0, 300, (300, 300)))


@pytest.mark.parametrize("make", [
    lambda window: dj.processors.occurrence_penalty(1.0, 0.0, 9, window),
    lambda window: dj.processors.no_repeat_ngram(2, 9, window)])
def test_windows_are_limited(make):
  with pytest.raises(ValueError, match="window=1000000: at most 131072 tokens"):
    make(10**6)
  assert make(penalties.MAX_WINDOW)


@pytest.mark.parametrize("size", [1, 3, 17, 40])
def test_sequences_of_any_size(size):
  """Long ones are compared in a loop."""
  processor = dj.processors.no_repeat_ngram(size, 5, 100)
  text = [i % 4 for i in range(60)]
  state = processor.init(())
  for token in text:
    state = processor.advance((), state, np.int32(token))
  forbidden = np.isneginf(processor.process((), state, jnp.zeros(5)))
  expected = [any(text[i:i + size] == [*text[len(text) - size + 1:], token]
                  for i in range(len(text) - size + 1)) for token in range(5)]
  assert forbidden.tolist() == expected and any(expected)
