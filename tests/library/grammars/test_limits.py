"""Patterns, schemas and stop strings of any size are compiled, or refused."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax import processors
from decoding_jax.grammars import byte_automaton, token_automaton
from decoding_jax.processors import penalties

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


@pytest.mark.parametrize("pattern, words", [
    ("(a|b)*a(a|b){40}", "an automaton of more than 20000 states, the limit"),
    (".*a.{20}", "more than 20000 states"), (r"\w{100}", "more than 20000"),
    ("a{1000000000}", "more than 100000 parts to put together, the limit"),
    ("((a{99}){99}){99}", "more than 100000 parts"),
    ("a{" + "9" * 5000 + "}", "more than 100000 parts"),
    ("((a?){140}){140}", "more than 50000000 steps to put together, the limit"),
    ("a" * 100_000, "more than 100000 parts"),
    ("(" * 1000 + ")" * 1000, "nested more than 100 deep, the limit"),
    ("a" + "*" * 1000, "nothing to repeat"),
    ("a\ud800b", "character 1 is '.ud800', half of a surrogate pair"),
    (3, "3: a text is needed")], ids=lambda x: str(x)[:20])
def test_patterns_that_are_refused(pattern, words):
  with pytest.raises(ValueError, match=f"^pattern=.*{words}") as error:
    processors.regex(pattern, PIECES, EOS)
  assert len(str(error.value)) < 300
  assert "\n" not in str(error.value)


@pytest.mark.parametrize("pattern, texts, others", [
    ("(a?){500}a{500}", ["a" * 500, "a" * 1000], ["a" * 499, "a" * 1001]),
    ('"(x|y["z]){0,60}"', ['"' + 'xy"' * 30 + '"'], ['"' + "x" * 61 + '"']),
    ("(a|b)*a(a|b){9}", ["a" * 10, "b" + "a" * 10], ["b" * 10]),
    ("(){1000000000}a", ["a"], [""]), ("(" * 99 + "a" + ")" * 99, ["a"], [])])
def test_patterns_that_took_no_end(pattern, texts, others):
  automaton = processors.regex(pattern, PIECES, EOS)
  assert all(matches(automaton, text) for text in texts)
  assert not any(matches(automaton, text) for text in others)


@pytest.mark.parametrize("pattern", [
    ".+", "(?s).+", "(?s:.)x.", "[^b]{1,3}", r"\W\D", r"[\S\n]+",
    "[[:^alpha:]]", r"\PL+", "(?i)AB?", "[]a]+", r"a[^\]]*", "(a|(?-s:.))b",
    "(?i)[^A]", "(?i:a)B|x", r"(?P<n>\w)\s?", r"\x{61}."])
def test_classes_are_those_of_unicode(pattern):
  """Against `re`."""
  automaton = processors.regex(pattern, PIECES, EOS)
  python = pattern
  for ours, theirs in (("[[:^alpha:]", "[^a-zA-Z"), (r"\x{61}", "a"),
                       (r"\PL", r"[\W\d_]")):
    python = python.replace(ours, theirs)
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
  results = inner or NULL
  for _ in range(depth):
    results = {"type": "array", "items": results}
  return results


def endless():
  results = {"type": "array"}
  results["items"] = results
  return results


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


def test_memory_and_transitions_are_limited(monkeypatch):
  monkeypatch.setattr(byte_automaton, "MAX_TRANSITIONS", 100)
  monkeypatch.setattr(token_automaton, "MAX_BYTES", 10**5)
  processors.regex("x{10}", PIECES, EOS)
  large = np.random.default_rng(0).integers(0, 300, (300, 300))
  for message, make, *arguments in (
      (r"^pattern='\[a-z\]\{10\}x': more than 100 transitions by tokens, the "
       "limit", processors.regex, "[a-z]{10}x", PIECES, EOS),
      (r"an automaton of 32 states would take .* GiB: at most 0\.0 GiB",
       processors.stop_strings, ["x" * 30], PIECES, EOS),
      ("300 states and 300 classes of tokens takes .* GiB: at most",
       processors.table, large)):
    with pytest.raises(ValueError, match=message):
      make(*arguments)


@pytest.mark.parametrize("make", [
    lambda window: dj.processors.occurrence_penalty(1.0, 0.0, 9, window),
    lambda window: dj.processors.no_repeat_ngram(2, 9, window)])
def test_windows_are_limited(make):
  with pytest.raises(ValueError, match="window=1000000: at most 131072 tokens"):
    make(10**6)
  assert make(penalties.MAX_WINDOW)


@pytest.mark.parametrize("size", [1, 3, 17, 40])
def test_sequences_of_any_size(size):
  processor = dj.processors.no_repeat_ngram(size, 5, 100)
  text = [i % 4 for i in range(60)]
  state = processor.init(())
  for token in text:
    state = processor.advance((), state, np.int32(token))
  forbidden = np.isneginf(processor.process((), state, jnp.zeros(5)))
  expected = [any(text[i:i + size] == [*text[len(text) - size + 1:], token]
                  for i in range(len(text) - size + 1)) for token in range(5)]
  assert forbidden.tolist() == expected and any(expected)
