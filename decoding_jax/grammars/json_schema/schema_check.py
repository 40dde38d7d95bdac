"""Values that keywords of a JSON schema may have, checked for any engine.

Engines ignore some malformed keywords, which are refused here.
"""

import contextlib
import json
import math

from decoding_jax.grammars.json_schema import schema_source
from decoding_jax.grammars.json_schema.schema_source import (Part, Source,
                                                             Unsupported)
from decoding_jax.validation import values


class Malformed(ValueError):
  """A schema that is none: no engine is asked to take it."""


def parse(name: str, schema):
  """Returns a schema, a dict or a text, as Python has JSON, checked. Raises
  Malformed, naming keyword, value and what is allowed; ValueError for what is
  no JSON, or is nested too deep."""
  try:
    if not isinstance(schema, str):
      schema_source.check_depth(schema)
      schema = json.dumps(schema)
    parsed = json.loads(schema)
    schema_source.check_depth(parsed)
  except RecursionError as e:
    raise ValueError(f"{name}: nested too deep: at most "
                     f"{schema_source.MAX_DEPTH} levels are supported.") from e
  except (TypeError, ValueError) as e:
    raise ValueError(f"{name}: {e}") from e
  check(parsed)
  return parsed


def check(schema):
  """Checks the values of all keywords, also after references: Malformed."""
  source, waiting, known = Source(schema), [Part(schema)], set()
  while waiting:
    part = waiting.pop()
    if id(part.node) in known or isinstance(part.node, bool):
      continue
    known.add(id(part.node))
    if not isinstance(part.node, dict):
      _fail(part.at, f"{values.shortened(part.node)} is no schema: an object, "
            "true or false is needed.")
    for keyword in part.node:
      _check_keyword(part, keyword)
      waiting += _inside(part, keyword)
    if "$ref" in part.node:
      # An engine may know where others lead.
      with contextlib.suppress(Unsupported):
        waiting.append(schema_source.follow(source, Part(part.node, part.at)))


def _check_keyword(part, keyword):
  allows, needed = _VALUES.get(keyword, (None, ""))
  given = part.node[keyword]
  if allows is not None and not allows(given):
    _fail(part.at, f"{keyword!r} is {values.shortened(given)}: {needed} is "
          "needed.")


def _inside(part, keyword):
  """Returns the schemas within a keyword that has been checked."""
  given = part.node[keyword]
  if keyword in _SCHEMAS or keyword == "items" and not isinstance(given, list):
    return [part.inside(keyword)]
  if keyword in (*_LISTS, "items"):
    return [part.inside(keyword, i) for i in range(len(given))]
  if keyword in _MAPPINGS or keyword == "dependencies":
    return [part.inside(keyword, name) for name, x in given.items()
            if keyword != "dependencies" or not isinstance(x, list)]
  return []


def _fail(at, problem):
  schema_source.fail(at, problem, Malformed)


def _is_number(x):
  return isinstance(x, (int, float)) and not isinstance(x, bool) and (
      isinstance(x, int) or math.isfinite(x))


def _is_names(x):
  return isinstance(x, list) and all(isinstance(name, str) for name in x)


def _is_type(x):
  given = x if isinstance(x, list) else [x]
  return bool(given) and all(
      isinstance(y, str) and y in _TYPES for y in given)


_TYPES = (*schema_source.TYPES, "integer")
_SCHEMAS = ("additionalProperties", "propertyNames", "additionalItems", "not",
            "if", "then", "else", "contains", "unevaluatedItems",
            "unevaluatedProperties")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_MAPPINGS = ("properties", "patternProperties", "dependentSchemas")
_NAMES = "a list of names"
_is_list = lambda x: isinstance(x, list) and bool(x)
_is_mapping = lambda x: isinstance(x, dict)
_is_count = lambda x: _is_number(x) and x >= 0 and x == int(x)
# Keyword -> (whether it may have a value, what is needed).
_VALUES = {
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or a list of some"),
    "enum": (_is_list, "a list of at least one"),
    "$ref": (lambda x: isinstance(x, str), "a text"),
    "pattern": (lambda x: isinstance(x, str), "a text"),
    "format": (lambda x: isinstance(x, str), "a text"),
    "uniqueItems": (lambda x: isinstance(x, bool), "true or false"),
    "multipleOf": (lambda x: _is_number(x) and x > 0, "a number above 0"),
    "required": (_is_names, _NAMES),
    "dependentRequired": (
        lambda x: _is_mapping(x) and all(map(_is_names, x.values())),
        f"an object, of which each value is {_NAMES},"),
    "dependencies": (
        lambda x: _is_mapping(x) and all(
            _is_names(y) or isinstance(y, (dict, bool)) for y in x.values()),
        f"an object, of which each value is a schema or {_NAMES},"),
    **dict.fromkeys(("minimum", "maximum"), (_is_number, "a number")),
    # In draft 4, these say whether the bound itself is left out.
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (
        lambda x: _is_number(x) or isinstance(x, bool),
        "a number, or true or false,")),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems",
                     "minProperties", "maxProperties", "minContains",
                     "maxContains"), (_is_count, "0 or a positive integer")),
    **dict.fromkeys(_LISTS, (_is_list, "a list of at least one schema")),
    **dict.fromkeys(_MAPPINGS, (_is_mapping, "an object of schemas")),
}
