"""JSON schemas with valid and invalid values, in the form of MaskBench."""

import gzip
import json
import pathlib
from typing import Any, NamedTuple

# A few of our own, each of keywords that people use.
_SHIPPED = (
    ("person", {
        "type": "object", "required": ["name", "age"],
        "additionalProperties": False, "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 130}}},
     [{"name": "Ada", "age": 36}],
     [{"name": "", "age": 36}, {"name": "Ada", "age": 131}, {"age": 1}]),
    ("call", {
        "type": "object", "required": ["function"],
        "additionalProperties": False, "properties": {
            "function": {"enum": ["open", "close"]},
            "arguments": {"type": "array", "maxItems": 3,
                          "items": {"type": ["integer", "boolean"]}}}},
     [{"function": "open"}, {"function": "close", "arguments": [1, True]}],
     [{"function": "shut"}, {"function": "open", "arguments": ["a"]}]),
    ("key", {"type": "string", "pattern": '^[A-Z]{2}-[0-9]{3}"?$'},
     ["AB-123", 'AB-123"'], ["AB-12", "xAB-123"]),
    ("shape", {"oneOf": [
        {"type": "object", "properties": {"kind": {"const": "circle"},
                                          "radius": {"type": "number"}},
         "required": ["kind", "radius"], "additionalProperties": False},
        {"type": "object", "properties": {"kind": {"const": "square"},
                                          "side": {"type": "number"}},
         "required": ["kind", "side"], "additionalProperties": False}]},
     [{"kind": "circle", "radius": 1.5}], [{"kind": "circle", "side": 2}]),
    ("patch", {"allOf": [
        {"type": "object", "required": ["op"]},
        {"properties": {"op": {"enum": ["add", "remove"]},
                        "path": {"type": "string", "pattern": "^/"}}}]},
     [{"op": "add", "path": "/a", "value": [1, {"b": None}]}],
     [{"path": "/a"}, {"op": "add", "path": "a"}]),
    ("tree", {"$ref": "#/$defs/node", "$defs": {"node": {
        "type": "object", "required": ["value"], "additionalProperties": False,
        "properties": {"value": {"type": "integer"}, "children": {
            "type": "array", "items": {"$ref": "#/$defs/node"}}}}}},
     [{"value": 1, "children": [{"value": 2}]}],
     [{"value": 1, "children": [2]}, {"children": []}]),
)


class SchemaTask(NamedTuple):
  """A schema, and values that are valid by it and that are not."""
  name: str
  schema: Any  # as parsed from JSON
  valid: list
  invalid: list


def shipped() -> list[SchemaTask]:
  """Returns the schemas that come along."""
  return [SchemaTask(*task) for task in _SHIPPED]


def read(path: str, limit: int = 0) -> list[SchemaTask]:
  """Returns the first `limit` schemas of a file; 0 for all."""
  # Its lines are JSON, perhaps compressed by gzip: `schema`, `tests` (a list of
  # `data` and `valid`), and perhaps `name`.
  data = pathlib.Path(path).read_bytes()
  text = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
  tasks = []
  for number, line in enumerate(text.decode("utf-8").splitlines(), 1):
    if limit and len(tasks) == limit:
      break
    try:
      entry = json.loads(line)
      tests = [(x["data"], bool(x["valid"])) for x in entry["tests"]]
      tasks.append(SchemaTask(
          str(entry.get("name", number)), entry["schema"],
          [x for x, valid in tests if valid],
          [x for x, valid in tests if not valid]))
    except (KeyError, TypeError, ValueError) as e:
      raise ValueError(f"{path}, line {number}: an object with 'schema' and "
                       f"'tests' of 'data' and 'valid' is needed: {e}.") from e
  return tasks
