"""JSON schemas in the few forms that `outlines_core` honours exactly.

That package silently ignores what it does not know: a `minimum`, keywords next
to a `$ref`, all but the first of several keywords that restrict a value. So a
keyword that is not known to be honoured is an error here.
"""

import dataclasses
import decimal
import itertools
import json
import re
from typing import Any
from urllib import parse

import numpy as np

from decoding_jax.processors import regex_automaton, regex_size, schema_size
from decoding_jax.validation import values as values_lib

# Keywords that do not restrict a value.
_ANNOTATIONS = frozenset((
    "title", "description", "default", "example", "examples", "deprecated",
    "readOnly", "writeOnly", "discriminator", "$schema", "$id", "$comment",
    "$defs", "definitions"))
_KEYWORDS = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": (), "integer": (), "boolean": (), "null": (),
    "array": ("items", "prefixItems", "minItems", "maxItems"),
    "object": ("properties", "required", "additionalProperties",
               "minProperties", "maxProperties")}
_DATE = (
    "(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])"
    "|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)"
    "|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
    "|(?:[02468][048]|[13579][26])00)-02-29)")
_TIME = (r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
         "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])")
_FORMATS = {
    "date": _DATE, "time": _TIME, "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"}
# In JSON Schema these classes have ASCII characters only.
_CLASSES = {r"\d": "[0-9]", r"\w": "[0-9A-Za-z_]"}
# Marks a part whose type was not given: the schema allows other types too.
_INFERRED = {"$comment": "inferred"}
# How often a reference to a part that contains it is followed.
_LEVELS = 3
# Comparisons of values in `oneOf`; about a second.
_MAX_COMPARISONS = 1_000_000


class Unsupported(ValueError):
  """A schema for which no exact pattern can be made."""


class _Nothing(Unsupported):
  """A schema that allows no value, or none that ends."""


@dataclasses.dataclass
class _Source:
  """A schema, and what has been spent on it.

  Attributes:
    schema: as of JSON.
    parts: of `schema_size.MAX_PARTS`.
    comparisons: of `_MAX_COMPARISONS`.
  """
  schema: Any
  parts: int = 0
  comparisons: int = 0


def plain(schema) -> dict:
  """Returns a schema in the forms that are honoured.

  Args:
    schema: as of JSON.

  Returns:
    A schema without references, each part one of an `enum`, an `anyOf` and one
    `type` with its own keywords. Its texts are texts of the given one.

  Raises:
    Unsupported: naming the keyword, its place, and what is supported; or the
      limit that the schema exceeds.
  """
  return _part(schema, "#", _Source(schema), ())


def _spend(source, at, parts):
  """Raises Unsupported if a schema has more parts than allowed."""
  source.parts += parts
  if source.parts > schema_size.MAX_PARTS:
    _fail(at, f"more than {schema_size.MAX_PARTS} parts, references written "
          "out and characters of patterns counted, the limit.")


def _fail(at, problem, kind=Unsupported):
  raise kind(f"schema at {at}: {problem}")


def _part(node, at, source, refs):
  """Returns a part of a schema in the forms that are honoured.

  Args:
    node: the part.
    at: its place, such as "#/items".
    source: the whole schema.
    refs: references that led here.
  """
  _spend(source, at, 1)
  if node is True:
    node = {}
  if node is False:
    _fail(at, "false allows nothing.", _Nothing)
  if not isinstance(node, dict):
    _fail(at, f"{values_lib.shortened(node)} is no schema, an object is "
          "needed.")
  node = {k: v for k, v in node.items() if k not in _ANNOTATIONS}
  for keyword, make in _WAYS.items():
    if keyword in node:
      beside = ("type",) if make is _values else ()
      _check_keywords(node, at, (keyword, *beside))
      return make(node, f"{at}/{keyword}", source, refs)
  types = _types(node, at)
  _check_keywords(node, at, ("type", *itertools.chain(
      *(_KEYWORDS[kind] for kind in types))))
  parts = _some([lambda kind=kind: _MAKERS.get(kind, _simple)(
      {k: v for k, v in node.items() if k in _KEYWORDS[kind]} | {"type": kind},
      at, source, refs) for kind in types])
  if "type" not in node and len(node):
    parts = [part | _INFERRED for part in parts]
  return parts[0] if len(parts) == 1 else {"anyOf": parts}


def _check_keywords(node, at, allowed):
  for keyword in node:
    if keyword not in allowed:
      known = ", ".join(dict.fromkeys([*allowed, *(
          () if allowed[0] in _WAYS else _WAYS)]))
      _fail(at, f"{keyword!r} is not supported here; supported are {known}, "
            "and annotations such as title.")


def _types(node, at):
  """Returns the types given, or else those that the keywords are for."""
  if "type" not in node:
    types = [kind for kind, keywords in _KEYWORDS.items()
             if node.keys() & set(keywords)]
    return types or [kind for kind in _KEYWORDS if kind != "integer"]
  types = node["type"] if isinstance(node["type"], list) else [node["type"]]
  if not types or not all(kind in list(_KEYWORDS) for kind in types):
    _fail(at, f"'type' is {node['type']!r}: of {', '.join(_KEYWORDS)} one, or "
          "a list of some, is needed.")
  return types


def _some(makers):
  """Returns what some functions return, but for those that allow nothing."""
  parts, error = [], None
  for make in makers:
    try:
      parts.append(make())
    except _Nothing as e:
      error = e
  if not parts:
    raise error
  return parts


def _limits(node, at, low, high):
  """Returns the least and the largest number; 0 and infinity by default."""
  for name in (low, high):
    if name in node and not (values_lib.is_integer(node[name]) and
                             node[name] >= 0):
      _fail(at, f"{name!r} is {node[name]!r}: 0 or a positive integer is "
            "needed.")
  least, most = node.get(low, 0), node.get(high, float("inf"))
  if least > most:
    _fail(at, f"{low!r} is {least}, more than the {most} of {high!r}.")
  return least, most


def _simple(node, *_):
  return node


def _string(node, at, source, _):
  _limits(node, at, "minLength", "maxLength")
  if not node.keys() & {"pattern", "format"}:
    return node
  if len(node) > 2:
    _fail(at, f"{', '.join(map(repr, node.keys() - {'type'}))} together are "
          "not supported, only minLength and maxLength are.")
  if "format" in node and node["format"] not in list(_FORMATS):
    _fail(at, f"'format' is {node['format']!r}, which is not supported; "
          f"supported are {', '.join(_FORMATS)}, or a 'pattern'.")
  pattern = (_FORMATS[node["format"]] if "format" in node else
             _pattern(node["pattern"], at))
  _spend(source, at, regex_size.length(pattern))
  return {"type": "string", "pattern": f"(?:{pattern})"}


def _pattern(pattern, at):
  """Returns a pattern whose texts need no escapes in JSON."""
  name = f"schema at {at}: 'pattern' is {values_lib.shortened(pattern)}"
  try:
    # A schema asks for texts that contain it; whole texts are some of these.
    whole = re.sub(r"(?<!\\)((?:\\\\)*)\$\Z", r"\1", pattern.removeprefix("^"))
    regex_automaton.check_anchors(name, whole)
    whole = re.sub(r"\\.", lambda x: _CLASSES.get(x[0], x[0]), whole)
    possible = regex_automaton.possible_bytes(name, whole)
  except (AttributeError, TypeError):
    _fail(at, f"'pattern' is {pattern!r}: a text is needed.")
  except ValueError as e:
    raise Unsupported(str(e)) from e
  if possible[:32].any() or possible[[*b'"\\']].any():
    _fail(at, f"'pattern' is {pattern!r}: it must not match quotation marks, "
          r'backslashes and control characters, as . does; [^"\\\x00-\x1f] '
          "does not.")
  return whole


def _array(node, at, source, refs):
  least, most = _limits(node, at, "minItems", "maxItems")
  if "prefixItems" in node:
    first = _list(node, at, "prefixItems")
    if not least <= len(first) <= most:
      _fail(at, f"'prefixItems' are {len(first)}: no fewer than 'minItems' and "
            "no more than 'maxItems' are supported.")
    return {"type": "array", "prefixItems": [
        _part(x, f"{at}/prefixItems/{i}", source, refs)
        for i, x in enumerate(first)]}
  if node.get("items", True) is True:
    return {k: v for k, v in node.items() if k != "items"}
  try:
    return node | {"items": _part(node["items"], f"{at}/items", source, refs)}
  except _Nothing:
    if least:
      raise
    return {"type": "array", "maxItems": 0}


def _list(node, at, keyword):
  if not isinstance(node[keyword], list) or not node[keyword]:
    _fail(at, f"{keyword!r} is {node[keyword]!r}: a list of at least one is "
          "needed.")
  return node[keyword]


def _object(node, at, source, refs):
  least, most = _limits(node, at, "minProperties", "maxProperties")
  properties, required = node.get("properties", {}), node.get("required", [])
  if not isinstance(properties, dict) or not isinstance(required, list):
    _fail(at, "'properties' must be an object, and 'required' a list.")
  for name in required:
    if name not in list(properties):
      _fail(at, f"'required' has {name!r}: only what is in 'properties' is "
            "supported.")
  if "properties" not in node:
    return _free_object(node, at, source, refs)
  if least > len(required) or most < len(properties):
    _fail(at, "'minProperties' and 'maxProperties' are supported only where "
          "'required' and 'properties' keep them anyway.")
  parts = {}
  for name, value in properties.items():
    inside = f"{at}/properties/{name}"
    if json.dumps(name, ensure_ascii=False) != f'"{name}"':
      _fail(inside, "quotation marks, backslashes and control characters in "
            "names are not supported.")
    try:
      parts[name] = _part(value, inside, source, refs)
    except _Nothing:
      if name in required:
        raise
  return {"type": "object", "properties": parts, "required": required}


def _free_object(node, at, source, refs):
  """Returns an object of any names.

  A name may come twice, so that the number of properties is not restricted.
  """
  least, most = _limits(node, at, "minProperties", "maxProperties")
  if least > 1 or 0 < most < float("inf"):
    _fail(at, "'minProperties' of more than 1 and 'maxProperties' of more than "
          "0 are not supported without 'properties'.")
  others = node.get("additionalProperties", True)
  node = {k: v for k, v in node.items()
          if k in ("type", "minProperties", "maxProperties")}
  if others is True or most == 0:
    return node
  try:
    inside = f"{at}/additionalProperties"
    return node | {"additionalProperties": _part(others, inside, source, refs)}
  except _Nothing:
    if least:
      raise
    return {"type": "object", "maxProperties": 0}


def _reference(node, at, source, refs):
  ref = node["$ref"]
  if not isinstance(ref, str) or not re.match("#(/|$)", ref):
    _fail(at, f"{ref!r}: only references such as #/$defs/name are supported.")
  found = source.schema
  for name in ref.split("/")[1:]:
    name = parse.unquote(name).replace("~1", "/").replace("~0", "~")
    try:
      found = found[int(name) if isinstance(found, list) else name]
    except (LookupError, TypeError, ValueError):
      _fail(at, f"there is no {ref}.")
  refs = (*refs, ref)
  if len(refs) - len(set(refs)) > _LEVELS:
    _fail(at, f"{ref} contains itself without an end.", _Nothing)
  return _part(found, ref, source, refs)


def _options(node, at, source, refs):
  """Returns an anyOf; allOf and oneOf only where they are equal to one."""
  keyword = at.rpartition("/")[2]
  given = _list(node, at, keyword)
  if keyword == "allOf" and len(given) > 1:
    _fail(at, "several schemas are not supported, only one is.")
  parts = _some([lambda i=i, x=x: _part(x, f"{at}/{i}", source, refs)
                 for i, x in enumerate(given)])
  if keyword == "oneOf":
    for x, y in itertools.combinations(parts, 2):
      source.comparisons += _num_values(x) * _num_values(y)
      if source.comparisons > _MAX_COMPARISONS:
        _fail(at, f"more than {_MAX_COMPARISONS} comparisons of values to tell "
              "its schemas apart, the limit; 'anyOf' needs none.")
      if not _apart(x, y):
        _fail(at, "supported are schemas that have no value in common: of "
              "other types, other values, or objects of which a required "
              "property tells which it is; else 'anyOf'.")
  return parts[0] if len(parts) == 1 else {"anyOf": parts}


def _values(node, at, *_):
  given = (_list(node, at, "enum") if "enum" in node else [node["const"]])
  types = _types(node, at) if "type" in node else [*_KEYWORDS]
  kinds = {*types, *(["integer"] if "number" in types else [])}
  values = [x for x in given if _type(x) in kinds or "integer" in kinds and
            isinstance(x, float) and x.is_integer()]
  if not values:
    _fail(at, "no value is of the type.", _Nothing)
  for value in values:
    _check_numbers(value, at)
  return {"enum": values}


def _type(value):
  return {bool: "boolean", int: "integer", float: "number", str: "string",
          list: "array", dict: "object"}.get(type(value), "null")


def _check_numbers(value, at):
  """Checks that numbers come back unchanged from `outlines_core`."""
  if isinstance(value, (list, dict)):
    for inside in value.values() if isinstance(value, dict) else value:
      _check_numbers(inside, at)
  elif isinstance(value, float):
    _, digits, exponent = decimal.Decimal(repr(value)).as_tuple()
    if not np.isfinite(value) or len(digits) > 15 or abs(exponent) > 22:
      _fail(at, f"{value}: numbers of at most 15 digits are supported.")
  elif values_lib.is_integer(value) and not -2**63 <= value < 2**64:
    _fail(at, f"{value}: integers of at most 64 bits are supported.")


def _num_values(node):
  """Returns how many values and parts of a plain schema may be compared."""
  return len(node.get("enum", ())) + 1 + sum(
      map(_num_values, [*node.get("anyOf", ()),
                        *node.get("properties", {}).values()]))


def _apart(x, y):
  """Whether two plain schemas surely have no value in common."""
  if "anyOf" in x or "anyOf" in y:
    x, y = (x, y) if "anyOf" in x else (y, x)
    return all(_apart(part, y) for part in x["anyOf"])
  if not _kinds(x) & _kinds(y):
    return True
  if "enum" in x and "enum" in y:
    return not any(value == other for value in x["enum"] for other in y["enum"])
  both = set(x.get("required", ())) & set(y.get("required", ()))
  return any(_apart(x["properties"][name], y["properties"][name])
             for name in both)


def _kinds(node):
  if node.items() >= _INFERRED.items():
    return {*_KEYWORDS}
  kinds = {_type(value) for value in node["enum"]} if "enum" in node else {
      node["type"]}
  return {"number" if kind == "integer" else kind for kind in kinds}


_WAYS = {"$ref": _reference, "allOf": _options, "anyOf": _options,
         "oneOf": _options, "enum": _values, "const": _values}
_MAKERS = {"string": _string, "array": _array, "object": _object}
