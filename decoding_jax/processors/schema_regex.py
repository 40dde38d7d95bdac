"""JSON schemas in the few forms of which `outlines_core` makes exact patterns.

That package ignores, without a word, what it does not know: a `minimum`, what
stands beside a `$ref`, all but the first of several ways to say what is
allowed. So whatever is not known to be honoured is an error here.
"""

import decimal
import itertools
import json
import re
from urllib import parse

import numpy as np

from decoding_jax.processors import regex_automaton
from decoding_jax.validation import values as values_lib

# Keywords that allow and forbid nothing by themselves.
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
# Those of JSON Schema have no others than these in ASCII.
_CLASSES = {r"\d": "[0-9]", r"\w": "[0-9A-Za-z_]"}
# Of a part whose type was not given: the schema allows all other types too.
_INFERRED = {"$comment": "inferred"}
# References to what contains them are followed so often.
_LEVELS = 3


class Unsupported(ValueError):
  """A schema of which no exact pattern can be made."""


class _Nothing(Unsupported):
  """A schema that allows no value, or none that ends."""


def plain(schema) -> dict:
  """A schema in forms that are honoured; its texts are texts of the first.

  Args:
    schema: as of JSON.

  Returns:
    A schema without references, each part one of an `enum`, an `anyOf` and one
    `type` with its own keywords.

  Raises:
    Unsupported: naming the keyword, where it stands, and what is supported.
  """
  return _part(schema, "#", schema, ())


def _fail(at, problem, kind=Unsupported):
  raise kind(f"schema at {at}: {problem}")


def _part(node, at, root, refs):
  if node is True:
    node = {}
  if node is False:
    _fail(at, "false allows nothing.", _Nothing)
  if not isinstance(node, dict):
    _fail(at, f"{node!r} is no schema, an object is needed.")
  node = {k: v for k, v in node.items() if k not in _ANNOTATIONS}
  for keyword, make in _WAYS.items():
    if keyword in node:
      beside = ("type",) if make is _values else ()
      _check_keywords(node, at, (keyword, *beside))
      return make(node, f"{at}/{keyword}", root, refs)
  types = _types(node, at)
  _check_keywords(node, at, ("type", *itertools.chain(
      *(_KEYWORDS[kind] for kind in types))))
  parts = _some([lambda kind=kind: _MAKERS.get(kind, _simple)(
      {k: v for k, v in node.items() if k in _KEYWORDS[kind]} | {"type": kind},
      at, root, refs) for kind in types])
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
  """Those that are given, or else those that the keywords are for."""
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
  """What some functions return, without those that allow nothing."""
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
  """A least and a largest number; 0 and infinity unless they are given."""
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


def _string(node, at, *_):
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
  return {"type": "string", "pattern": f"(?:{pattern})"}


def _pattern(pattern, at):
  """A pattern of texts that stand in JSON as they are."""
  name = f"schema at {at}: 'pattern' is {pattern!r}"
  try:
    # From end to end: fewer texts than those in which it is found.
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


def _array(node, at, root, refs):
  least, most = _limits(node, at, "minItems", "maxItems")
  if "prefixItems" in node:
    first = _list(node, at, "prefixItems")
    if not least <= len(first) <= most:
      _fail(at, f"'prefixItems' are {len(first)}: no fewer than 'minItems' and "
            "no more than 'maxItems' are supported.")
    return {"type": "array", "prefixItems": [
        _part(x, f"{at}/prefixItems/{i}", root, refs)
        for i, x in enumerate(first)]}
  if node.get("items", True) is True:
    return {k: v for k, v in node.items() if k != "items"}
  try:
    return node | {"items": _part(node["items"], f"{at}/items", root, refs)}
  except _Nothing:
    if least:
      raise
    return {"type": "array", "maxItems": 0}


def _list(node, at, keyword):
  if not isinstance(node[keyword], list) or not node[keyword]:
    _fail(at, f"{keyword!r} is {node[keyword]!r}: a list of at least one is "
          "needed.")
  return node[keyword]


def _object(node, at, root, refs):
  least, most = _limits(node, at, "minProperties", "maxProperties")
  properties, required = node.get("properties", {}), node.get("required", [])
  if not isinstance(properties, dict) or not isinstance(required, list):
    _fail(at, "'properties' must be an object, and 'required' a list.")
  for name in required:
    if name not in list(properties):
      _fail(at, f"'required' has {name!r}: only what is in 'properties' is "
            "supported.")
  if "properties" not in node:
    return _free_object(node, at, root, refs)
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
      parts[name] = _part(value, inside, root, refs)
    except _Nothing:
      if name in required:
        raise
  return {"type": "object", "properties": parts, "required": required}


def _free_object(node, at, root, refs):
  """An object of any names. One may come twice, so numbers are not kept."""
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
    return node | {"additionalProperties": _part(others, inside, root, refs)}
  except _Nothing:
    if least:
      raise
    return {"type": "object", "maxProperties": 0}


def _reference(node, at, root, refs):
  ref = node["$ref"]
  if not isinstance(ref, str) or not re.match("#(/|$)", ref):
    _fail(at, f"{ref!r}: only references such as #/$defs/name are supported.")
  found = root
  for name in ref.split("/")[1:]:
    name = parse.unquote(name).replace("~1", "/").replace("~0", "~")
    try:
      found = found[int(name) if isinstance(found, list) else name]
    except (LookupError, TypeError, ValueError):
      _fail(at, f"there is no {ref}.")
  refs = (*refs, ref)
  if len(refs) - len(set(refs)) > _LEVELS:
    _fail(at, f"{ref} contains itself without an end.", _Nothing)
  return _part(found, ref, root, refs)


def _options(node, at, root, refs):
  """Of anyOf, and of allOf and oneOf where that is the same."""
  keyword = at.rpartition("/")[2]
  given = _list(node, at, keyword)
  if keyword == "allOf" and len(given) > 1:
    _fail(at, "several schemas are not supported, only one is.")
  parts = _some([lambda i=i, x=x: _part(x, f"{at}/{i}", root, refs)
                 for i, x in enumerate(given)])
  if keyword == "oneOf":
    for x, y in itertools.combinations(parts, 2):
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
  """Numbers of more digits come back as others from `outlines_core`."""
  if isinstance(value, (list, dict)):
    for inside in value.values() if isinstance(value, dict) else value:
      _check_numbers(inside, at)
  elif isinstance(value, float):
    _, digits, exponent = decimal.Decimal(repr(value)).as_tuple()
    if not np.isfinite(value) or len(digits) > 15 or abs(exponent) > 22:
      _fail(at, f"{value}: numbers of at most 15 digits are supported.")
  elif values_lib.is_integer(value) and not -2**63 <= value < 2**64:
    _fail(at, f"{value}: integers of at most 64 bits are supported.")


def _apart(x, y):
  """Whether two plain schemas have no value in common, as far as is seen."""
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
