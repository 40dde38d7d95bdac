"""JSON schemas: each text has the schema, or the schema is an error."""

import datetime
import decimal
import itertools
import json
import math
import re

import numpy as np
import pytest

from decoding_jax import processors
from decoding_jax.grammars import finite_automata, regex
from decoding_jax.grammars.json_schema import (json_numbers, json_strings,
                                               schema_automaton, schema_check,
                                               schema_source)
from decoding_jax.kernels import bits

EOS = 256
PIECES = [*(bytes([byte]) for byte in range(EOS)), b""]
NULL, INTEGER = {"type": "null"}, {"type": "integer"}
UNIQUE = {"type": "array", "uniqueItems": True}


def values(schema, count=100):
  """Values of random texts that a schema allows, each of them JSON."""
  automaton = processors.json_schema(schema, PIECES, EOS)
  allowed = [np.flatnonzero(bits.unpack(row, len(PIECES)))
             for row in automaton.allowed]
  rng = np.random.default_rng(0)
  for _ in range(count):
    state, text = 0, b""
    while True:
      tokens = allowed[state]
      ends = EOS in tokens and rng.random() < .5
      # Often what a text is made of, so that it comes to its end.
      likely = [x for x in tokens if x in [*b'"{}[],:0129ab']]
      if likely and rng.random() < .8:
        tokens = likely
      token = EOS if ends else rng.choice(tokens)
      if token == EOS:
        break
      text += PIECES[token]
      state = automaton.following[state, automaton.classes[token]]
    yield json.loads(text)


def is_node(x):
  return set(x) == {"kids"} and all(map(is_node, x["kids"]))


def accepts(schema, value, **dumps):
  """Whether the automaton of a schema has a value, as json.dumps writes it."""
  text = value if isinstance(value, bytes) else json.dumps(
      value, ensure_ascii=False, **dumps).encode()
  return finite_automata.accepts(schema_automaton.of_schema(schema), text)


KEY = {"properties": {"a": INTEGER, "b": NULL}, "required": ["a"]}
REFUSING = {**KEY, "additionalProperties": False}
CASES = [
    # (schema, valid values, invalid ones)
    (INTEGER, [0, -7, 10**30], [1.5, "1", None, True]),
    ({"type": "integer", "minimum": 3, "exclusiveMaximum": 120.5},
     [3, 99, 100, 120], [2, 121, -3, 1000, 3.5]),
    ({"type": "number", "minimum": -1.25, "maximum": 10},
     [-1.25, -1.2, -1, 0, 0.001, 9.99, 10, 10.0], [-1.26, -2, 10.01, 11]),
    ({"type": "number", "exclusiveMinimum": 0}, [0.1, 1], [0, -1]),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": True}, [0.1], [0]),
    ({"type": "integer", "multipleOf": 7, "minimum": 10}, [14, 21, 700],
     [7, 15, 0]),
    ({"type": "number", "multipleOf": 0.01}, [1.25, 1, -0.5, 3.1], [1.255]),
    ({"type": "string", "minLength": 2, "maxLength": 3},
     ["ab", "a\n", '"é😀'], ["a", "abcd", ""]),
    ({"pattern": '^"[^x]+"$'}, ['"a\\"', '""""', 1, None], ["a", '"x"', '"']),
    ({"pattern": "b"}, ["abc", "b"], ["ac", ""]),
    ({"pattern": "^(?!con$)[a-z]+$", "minLength": 2}, ["cone", "ab"],
     ["con", "a", "A"]),
    ({"format": "date-time"}, ["2024-02-29T23:59:59Z"],
     ["2023-02-29T23:59:59Z", "2024-02-29"]),
    ({"format": "email", "maxLength": 9}, ["a@bc.de"], ["a@b", "abc@def.org"]),
    ({"format": "ipv6"}, ["::1", "1::", "1:2:3:4:5:6:7:8"], ["1::2::3", ":"]),
    ({"format": "uri"}, ["https://a.b/c?d#e", "urn:a:b"], ["a b", "//a"]),
    ({"type": "string", "format": "a name of our own"}, ["x"], []),
    ({"items": INTEGER, "minItems": 1, "maxItems": 2}, [[1], [1, 2]],
     [[], [1, 2, 3], ["a"]]),
    ({"items": [NULL, INTEGER], "additionalItems": False, "minItems": 1},
     [[None], [None, 3]], [[], [3], [None, 3, 3]]),
    ({"prefixItems": [NULL], "items": INTEGER, "type": "array"},
     [[], [None], [None, 1, 2]], [[1], [None, None]]),
    (KEY, [{"a": 1}, {"a": 1, "b": None}, {"a": 1, "c": {"d": [1]}}, 3],
     [{}, {"b": None}, {"a": None}, {"a": 1, "b": 1}]),
    # Only those of the automaton: no name of the schema comes after others.
    (KEY, [], [b'{"a": 1, "c": 1, "b": 1}', b'{"a": 1, "\\u0062": 1}']),
    (REFUSING, [{"a": 1}], [{"a": 1, "c": 1}]),
    ({"required": ["x"], "type": "object"}, [{"x": 1}, {"x": 1, "y": 2}], [{}]),
    ({"patternProperties": {"^i": INTEGER, "n$": NULL}, "type": "object",
      "additionalProperties": {"type": "string"}},
     [{"i": 1}, {"n": None}, {"a": "x", "i": 2}, {}],
     [{"in": 1}, {"in": None}, {"i": "x"}, {"a": 1}]),
    ({"propertyNames": {"maxLength": 2}, "minProperties": 2, "type": "object",
      "properties": {"a": NULL, "b": NULL, "abc": NULL}},
     [{"a": None, "b": None}, {"a": None, "c": 1}],
     [{"a": None}, {}, {"abc": None, "a": None}]),
    ({"maxProperties": 1, "additionalProperties": INTEGER, "type": "object"},
     [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    ({"dependentRequired": {"a": ["b"]}, "type": "object"},
     [{}, {"b": 1}, {"a": 1, "b": 1}], [{"a": 1}]),
    ({"enum": [1, "a", {"b": [None]}], "type": ["integer", "object"]},
     [1, {"b": [None]}], ["a", True]),
    ({"const": "\"\n\\é"}, ["\"\n\\é"], ["a"]),
    ({"allOf": [KEY, {"properties": {"a": {"minimum": 5}, "c": NULL}}]},
     [{"a": 5}, {"a": 6, "c": None}], [{"a": 4}, {"a": 5, "c": 1}, {}]),
    ({"allOf": [{"additionalProperties": False, "properties": {"a": NULL},
                 "type": "object"}, {"properties": {"b": NULL}}]},
     [{}, {"a": None}], [{"b": None}]),
    ({"allOf": [{"patternProperties": {"^x": INTEGER}, "type": "object"},
                {"additionalProperties": False, "properties": {"a": NULL}}]},
     [{}, {"a": None}], [{"x": 1}]),
    ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"minimum": 2}},
      "type": "integer"}, [2], [1, "a"]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
     [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}]),
    ({"oneOf": [{"minLength": 3}, {"pattern": "^a"}], "type": "string"},
     ["a", "bbb"], ["abc", "b"]),
    ({"not": {"type": ["null", "object"]}}, [1, "a", []], [None, {}]),
    ({"not": {"enum": ["a", 2, True]}}, ["b", 1, 2.5, False, None, []],
     ["a", 2, True]),
    ({"not": {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
      "type": "object"}, [{}, {"c": 1}], [{"a": 1}, {"b": 1}]),
    ({"if": {"properties": {"k": {"const": 1}}, "required": ["k"]},
      "then": {"required": ["x"]}, "else": {"required": ["y"]},
      "type": "object"},
     [{"k": 1, "x": 0}, {"k": 2, "y": 0}, {"y": 0}], [{"k": 1}, {"k": 2}]),
    ({"anyOf": [{"type": "null"}, {"minimum": 3}], "type": ["null", "number"]},
     [None, 3], [2, "a"]),
    ({"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}},
      "required": ["kids"], "additionalProperties": False, "type": "object"},
     [{"kids": []}, {"kids": [{"kids": []}, {"kids": []}]}],
     [{}, {"kids": [1]}]),
    ({}, [None, {"a": [1, {"b": "c"}]}], [b"", b"{", b'{"a" 1}']),
    ({**UNIQUE, "items": {"enum": ["a", 1, None]}, "minItems": 1},
     [["a"], [None, 1, "a"], [1, "a"]], [[], [1, 1], ["a", 1, "a"], [2]]),
    ({**UNIQUE, "items": {"type": ["boolean", "null"]}, "maxItems": 2},
     [[], [True, None], [None, False]], [[None, None], [True, False, None]]),
    ({**UNIQUE, "prefixItems": [{"const": "b"}, {"enum": [3, "a"]}],
      "items": {"type": "integer", "minimum": 3, "exclusiveMaximum": 6}},
     [["b"], ["b", 3, 5, 4], ["b", "a", 3]], [[3], ["b", 3, 3], ["b", "b"],
                                              ["b", "a", 6]]),
    ({"allOf": [UNIQUE, {"items": {"enum": list(range(40))}}], "minItems": 2,
      "maxItems": 3}, [[0, 39], [3, 5, 20]], [[3], [3, 3], [0, 1, 2, 3]]),
    ({**UNIQUE, "enum": [[1, 1], [1, True], {}]}, [[1, True]], [[1, 1], {}]),
]


@pytest.mark.parametrize("schema, valid, invalid", CASES,
                         ids=[str(i) for i in range(len(CASES))])
def test_values_of_a_schema(schema, valid, invalid):
  for x in valid:
    assert accepts(schema, x), x
    assert accepts(schema, x, separators=(",", ":")), x
  for x in invalid:
    assert not accepts(schema, x), x


def test_random_texts_are_valid():
  """By another implementation, if it is there."""
  jsonschema = pytest.importorskip("jsonschema")
  for schema in [x for x, _, _ in CASES[2:40:5]]:
    validator = jsonschema.Draft202012Validator(schema)
    if "items" in schema and isinstance(schema["items"], list) or (
        schema.get("exclusiveMinimum") is True):
      continue  # Of older drafts.
    for value in values(schema, 20):
      assert validator.is_valid(value), (schema, value)


def test_numbers_between_bounds_by_their_values():
  texts = [f"{sign}{i}{x}" for sign in ("", "-") for i in (0, 1, 2, 9, 10, 12)
           for x in ("", ".0", ".05", ".5", ".25", ".249", ".99")]
  bounds = [None, *map(decimal.Decimal, ("0", "1.25", "-2.5", "10", "9.99"))]
  for low, high, open_low, open_high in itertools.product(
      bounds, bounds, (False, True), (False, True)):
    if None not in (low, high) and low > high:
      continue
    actual = json_numbers.between(low, high, open_low, open_high)
    for text in texts:
      x = decimal.Decimal(text)
      expected = (low is None or x > low or x == low and not open_low) and (
          high is None or x < high or x == high and not open_high)
      # Zero need not have a sign.
      assert json_strings.has(actual, text) == expected or (
          x == 0 and text[0] == "-"), (low, high, text)


def test_numbers_without_bounds_are_those_of_json():
  numbers = json_numbers.between(None, None)
  for size in range(1, 6):
    for text in map("".join, itertools.product("-1.0e", repeat=size)):
      try:
        json.loads(text)
      except ValueError:
        assert not json_strings.has(numbers, text), text
      else:
        assert json_strings.has(numbers, text), text


@pytest.mark.parametrize("pattern", [
    "^(^a|b)$", "^^a", "a$$", "^(a$|b)$", "(^|a)+b", "^(^(^a|b)|^c)$",
    "^a+b?$", "a|b$", "^[^ab]", "b{2,3}", "^(a|bc){1,2}c?$", r"^\w-\d$", "^$",
    "", "^a|b", r"^[a\-c]+$", "(a|b)*abb", "^(?=.*b)(?!ab)a.*$", "^.{2}$",
    r"^(a{0,2}b){2}$", r"\u0061\x62", r"[\w-]c", "a*?b", "(?:a|)b$"])
def test_patterns_by_python(pattern):
  match = regex.search(pattern)
  for size in range(5):
    for text in map("".join, itertools.product("abc-1", repeat=size)):
      assert json_strings.has(match, text) == bool(re.search(pattern, text))


@pytest.mark.parametrize("pattern, message", [
    ("(", "missing"), ("a)", "unbalanced"), ("*", "nothing to repeat"),
    (r"(a)\1", "not supported"), ("a(?=b)", "at the begin alone"),
    ("(?<=a)b", "look-behind"), ("a{3,2}", "out of order"),
    ("[b-a]", "out of order"), ("(a|b)*a(a|b){20}", "more than 2000 states"),
    ("a{30000}", "more than 20000 parts"), ("^(a?){5000}$", "steps to put"),
    ("(){1000000000}a{30000}", "more than 20000 parts")])
def test_patterns_that_are_refused(pattern, message):
  with pytest.raises(ValueError, match=f"schema at #.*'pattern'.*{message}"):
    processors.json_schema({"pattern": pattern}, PIECES, EOS)


def test_formats():
  for x in values({"format": "date-time", "type": "string"}):
    if x[:4] != "0000":  # Which Python does not know.
      datetime.datetime.fromisoformat(x)
  result = json_strings.of_format("date")
  for year in (1899, 1900, 2000, 2023, 2024):
    for month in range(14):
      for day in range(33):
        text = f"{year}-{month:02}-{day:02}"
        assert json_strings.has(result, text) == is_date(text)


def is_date(text):
  try:
    return bool(datetime.date.fromisoformat(text))
  except ValueError:
    return False


def test_numbers_come_back():
  rng = np.random.default_rng(0)
  given = [*map(float, rng.normal(size=200)), 2**70, -2**63, 1e22, -0.5]
  results = set(values({"enum": given}, 500))
  assert results <= set(given) and len(results) > 20


def test_whitespace_is_what_is_asked_for():
  text = json.dumps({"a": [1, 2]}, indent=2).encode()
  schema = {"properties": {"a": {"items": INTEGER}}, "type": "object"}
  assert not accepts(schema, text)
  result = schema_automaton.of_schema(schema, r"[ \n]*")
  assert finite_automata.accepts(result, text)
  with pytest.raises(ValueError, match="whitespace='a': a pattern of blanks"):
    processors.json_schema(schema, PIECES, EOS, whitespace="a")


@pytest.mark.parametrize("schema, at, problem", [
    *((schema, "#", repr(next(reversed(schema)))) for schema in (
        {"type": "array", "contains": NULL},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "unevaluatedItems": False},
        {"type": "string", "format": "regex"},
        {"minimum": 1e301}, {"not": {"format": "date"}})),
    ({"items": {"properties": {"a": {"anyOf": [NULL, {"contains": True}]}}}},
     "#/items/properties/a/anyOf/1", "'contains'"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {"contains": True}}}},
     "#/$defs/a/not", "'contains'"),
    ({"oneOf": [{"items": NULL}, {"items": INTEGER}], "type": "array"},
     "#/oneOf/0", "differ"),
    ({"oneOf": [{"type": "number"}, INTEGER]}, "#", "no value"),
    ({**UNIQUE, "items": INTEGER}, "#/items", "'uniqueItems' is supported for"),
    ({**UNIQUE, "items": NULL, "minItems": 2}, "#", "no value"),
    ({"$ref": "https://a/b"}, "#/$ref", "only references"),
    ({"$ref": "#/$defs/b"}, "#/$ref", "there is no"),
    ({"type": "integer", "multipleOf": 5000}, "#", "up to 1000"),
    ({"type": "number", "multipleOf": 0.3}, "#", "powers of ten"),
    ({"properties": {"a": {"$ref": "#"}}, "required": ["a"],
      "type": "object"}, "#", "no value"),
    ({"const": float("nan")}, "#", "no number of JSON"),
    ({"enum": [1], "type": "string"}, "#", "no value"),
    ({"properties": {"a": False}, "required": ["a"], "type": "object"}, "#",
     "no value")], ids=str)
def test_what_is_not_honoured_is_an_error(schema, at, problem):
  with pytest.raises(ValueError,
                     match=f"^schema at {re.escape(at)}: .*{problem}"):
    processors.json_schema(schema, PIECES, EOS)


@pytest.mark.parametrize("make", [
    processors.json_schema, processors.llguidance_engine.json_schema,
    processors.xgrammar_engine.json_schema], ids=lambda x: x.__module__)
@pytest.mark.parametrize("keyword, given, needed", [
    *(("multipleOf", x, "a number above 0") for x in (-1, 0, "2", None)),
    *(("minimum", x, "a number") for x in (None, "a", [], math.inf, True)),
    *(("minItems", x, "0 or a positive integer") for x in (-1, 2.5, "x", None)),
    ("minLength", -1, "0 or a positive integer"),
    ("exclusiveMaximum", "1", "a number, or true or false,"),
    ("uniqueItems", "x", "true or false"), ("required", "x", "a list of names"),
    ("required", [1], "a list of names"), ("enum", [], "a list of at least"),
    ("type", "text", "one of null, boolean"), ("type", [], "one of null"),
    ("type", [["null"]], "one of null"), ("properties", [], "an object of sch"),
    ("dependencies", [], "an object, of which each value is a schema or"),
    ("dependencies", {"a": [1]}, "an object, of which"), ("$ref", 1, "a text"),
    ("anyOf", {}, "a list of at least one schema"), ("pattern", 1, "a text")])
def test_a_keyword_with_a_wrong_value_is_refused_for_any_engine(
    make, keyword, given, needed):
  """Also where its type, which others than arrays ignore, is another one."""
  schema = {"$ref": "#/a", "a": {"items": {"title": 1, keyword: given}}}
  with pytest.raises(schema_check.Malformed) as error:
    make(schema, PIECES, EOS)
  assert str(error.value).startswith(
      f"schema at #/a/items: {keyword!r} is {given!r}: {needed}")
  assert not isinstance(error.value, schema_source.Unsupported)


@pytest.mark.parametrize("schema, at", [
    (3, "#"), ({"items": None}, "#/items"), ({"not": []}, "#/not"),
    ({"items": [{}, 1]}, "#/items/1"), ({"allOf": [{"if": 1}]}, "#/allOf/0/if"),
    ({"properties": {"a": 1}}, "#/properties/a"),
    ({"dependencies": {"a": {"$ref": "#/b"}}, "b": "x"}, "#/b")])
def test_what_is_no_schema_is_refused(schema, at):
  with pytest.raises(schema_check.Malformed, match=f"^schema at {at}: .* is no "
                     "schema: an object, true or false is needed"):
    processors.json_schema(schema, PIECES, EOS)


def test_what_is_too_large_is_cut_and_then_refused():
  cut = schema_automaton.of_schema({"type": "string", "maxLength": 10**6})
  assert finite_automata.accepts(cut, b'"' + b"x" * 256 + b'"')
  assert not finite_automata.accepts(cut, b'"' + b"x" * 257 + b'"')
  with pytest.raises(finite_automata.TooLarge, match="as many states"):
    processors.json_schema({"type": "string", "minLength": 10**6}, PIECES, EOS)
  with pytest.raises(finite_automata.TooLarge, match="longer than allowed"):
    processors.json_schema({}, PIECES, EOS, seconds=0)
