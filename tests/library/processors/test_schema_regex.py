"""JSON schemas: each text has the schema, or the schema is an error."""

import datetime
import json
import re

import numpy as np
import pytest

from decoding_jax import processors
from decoding_jax.kernels import bits
from decoding_jax.processors import schema_regex

pytest.importorskip("outlines_core")
EOS = 256
PIECES = [*(bytes([byte]) for byte in range(EOS)), b""]
NULL, INTEGER = {"type": "null"}, {"type": "integer"}


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


@pytest.mark.parametrize("schema, right", [
    (INTEGER, lambda x: isinstance(x, int)),
    ({"type": "string", "minLength": 2, "maxLength": 3},
     lambda x: len(x) in (2, 3)),
    ({"type": "string", "pattern": "^a|b$"}, ["a", "b"]),
    ({"pattern": r"\d\w"}, lambda x: re.fullmatch("[0-9][0-9A-Za-z_]", x)),
    ({"type": ["string", "null"], "minLength": 2},
     lambda x: x is None or len(x) > 1),
    ({"type": "array", "items": NULL, "minItems": 1, "maxItems": 2},
     [[None], [None] * 2]),
    ({"prefixItems": [NULL, INTEGER], "items": False, "minItems": 1},
     lambda x: x[0] is None and isinstance(x[1], int) and len(x) == 2),
    ({"properties": {"a.b": {"const": 1}, "c": False, "d": NULL},
      "required": ["a.b"], "additionalProperties": True},
     [{"a.b": 1}, {"a.b": 1, "d": None}]),
    ({"type": "object", "additionalProperties": {"anyOf": [NULL, INTEGER]},
      "minProperties": 1},
     lambda x: x and all(y is None or isinstance(y, int) for y in x.values())),
    ({"type": "object", "additionalProperties": False}, [{}]),
    ({"enum": [1, "a", 2.5, {"b": [None]}], "type": ["integer", "object"]},
     [1, {"b": [None]}]),
    ({"const": "\"\n\\é"}, ["\"\n\\é"]),
    ({"allOf": [{"$ref": "#/$defs/a~1b"}], "title": "t",
      "$defs": {"a/b": NULL}}, [None]),
    ({"oneOf": [{"properties": {"k": {"const": i}}, "required": ["k"]}
                for i in range(2)]}, [{"k": 0}, {"k": 1}]),
    ({"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}},
      "required": ["kids"]}, is_node)])
def test_values_have_the_schema(schema, right):
  found = list(values(schema))
  if isinstance(right, list):
    assert all(x in found for x in right) and all(x in right for x in found)
  else:
    assert all(map(right, found))
    assert len(set(map(str, found))) > 5


def test_formats():
  for x in values({"format": "date-time"}):
    if x[:4] != "0000":  # Which Python does not know.
      datetime.datetime.fromisoformat(x)
  pattern = re.compile(schema_regex.plain({"format": "date"})["pattern"])
  for year in (1899, 1900, 2000, 2023, 2024):
    for month in range(14):
      for day in range(33):
        text = f"{year}-{month:02}-{day:02}"
        assert bool(pattern.fullmatch(text)) == is_date(text)


def is_date(text):
  try:
    return bool(datetime.date.fromisoformat(text))
  except ValueError:
    return False


def test_numbers_come_back():
  rng = np.random.default_rng(0)
  given = [float(f"{x:.14e}") for x in rng.normal(size=500)]
  given += [2**64 - 1, -2**63, 1e22, -0.5]
  found = set(values({"enum": given}, 2000))
  assert found <= set(given) and len(found) > 100


@pytest.mark.parametrize("schema, at, problem", [
    *((schema, "#", repr(next(reversed(schema)))) for schema in (
        {"type": "integer", "minimum": 1},
        {"type": "integer", "exclusiveMinimum": 1},
        {"type": "number", "multipleOf": 2}, {"maximum": 3},
        {"type": "string", "minDigits": 2},
        {"type": "string", "contentEncoding": "base64"},
        {"type": "array", "contains": NULL},
        {"type": "array", "uniqueItems": True},
        {"type": "array", "unevaluatedItems": False},
        {"type": "object", "patternProperties": {"a": NULL}},
        {"type": "object", "propertyNames": {"maxLength": 1}},
        {"type": "object", "dependentRequired": {"a": ["b"]}},
        {"type": "object", "required": ["a"]},
        {"properties": {"a": NULL}, "required": ["b"]},
        {"properties": {"a": NULL}, "minProperties": 1},
        {"type": "object", "maxProperties": 2},
        {"type": "object", "minProperties": 2},
        {"type": "string", "not": {"const": "a"}},
        {"type": "string", "if": {}}, {"type": "string", "nullable": True},
        {"type": "string", "items": NULL}, {"const": 1, "minimum": 2},
        {"$ref": "#/$defs/a", "type": "null"},
        {"anyOf": [NULL], "type": "null"},
        {"enum": [1], "const": 1}, {"type": "string", "format": "email"},
        {"type": "string", "pattern": "."},
        {"type": "string", "pattern": "a$|^b"}, {"pattern": "(?=a)"},
        {"minLength": 1, "pattern": "a"}, {"minLength": -1}, {"minItems": 2.0},
        {"maxItems": 1, "minItems": 2}, {"prefixItems": [NULL], "minItems": 2},
        {"type": "text"}, {"type": []}, {"type": [["null"]]})),
    ({"items": {"properties": {"a": {"anyOf": [NULL, {"minimum": 1}]}}}},
     "#/items/properties/a/anyOf/1", "'minimum'"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"not": NULL}}}, "#/$defs/a",
     "'not'"),
    ({"allOf": [NULL, NULL]}, "#/allOf", "several"),
    ({"oneOf": [INTEGER, {"type": "number"}]}, "#/oneOf", "in common"),
    ({"oneOf": [NULL, {"minLength": 1}]}, "#/oneOf", "in common"),
    ({"$ref": "https://a/b"}, "#/$ref", "only references"),
    ({"$ref": "#/$defs/b"}, "#/$ref", "there is no"),
    ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]},
     "#/properties/a/$ref", "contains itself"),
    ({"properties": {'"': NULL}}, '#/properties/"', "names"),
    ({"enum": []}, "#/enum", "at least one"),
    ({"const": 0.1234567890123456}, "#/const", "15 digits"),
    ({"const": 2**64}, "#/const", "64 bits"),
    ({"const": float("nan")}, "#/const", "15 digits"),
    ({"enum": [1], "type": "string"}, "#/enum", "no value"),
    ({"properties": {"a": False}, "required": ["a"]}, "#/properties/a",
     "nothing")], ids=str)
def test_what_is_not_honoured_is_an_error(schema, at, problem):
  with pytest.raises(ValueError,
                     match=f"^schema at {re.escape(at)}: .*{problem}"):
    processors.json_schema(schema, PIECES, EOS)
