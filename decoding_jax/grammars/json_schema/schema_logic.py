"""`not`, `if` and `dependencies`, written by keywords that allow values.

A negation may be narrower than the true one: branches that cannot be negated
are left out.
"""

from decoding_jax.grammars.json_schema import schema_source
from decoding_jax.grammars.json_schema.schema_source import (Endless, Part,
                                                             Source, fail)

# Keys of parts that are made here: no text, so that no schema has them.
NOT_PATTERNS, NOT_VALUES = object(), object()
# What keywords are for which the opposite is one more keyword:
# (opposite keyword, what is added to the number, type, least value).
_OPPOSITE = {
    "minLength": ("maxLength", -1, "string"),
    "maxLength": ("minLength", 1, "string"),
    "minItems": ("maxItems", -1, "array"),
    "maxItems": ("minItems", 1, "array"),
    "minProperties": ("maxProperties", -1, "object"),
    "maxProperties": ("minProperties", 1, "object"),
    "minimum": ("exclusiveMaximum", 0, "number"),
    "maximum": ("exclusiveMinimum", 0, "number"),
    "exclusiveMinimum": ("maximum", 0, "number"),
    "exclusiveMaximum": ("minimum", 0, "number")}


def rewritten(source: Source, part: Part) -> list[Part]:
  """Returns parts that hold besides the simple keywords of a part."""
  node, parts = part.node, []
  if "not" in node:
    parts.append(_negated_or_fail(source, part, "not"))
  if "if" in node and ("then" in node or "else" in node):
    then, other = (node.get(x, True) for x in ("then", "else"))
    options = [{"allOf": [node["if"], then]}]
    if other is not False:
      options.append({"allOf": [_negated_or_fail(source, part, "if").node,
                                other]})
    parts.append(part.other({"anyOf": options}))
  for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
    for name, needs in node.get(keyword, {}).items():
      needs = {"required": needs} if isinstance(needs, list) else needs
      parts.append(part.other({"anyOf": [
          {"properties": {name: False}},
          {"allOf": [{"required": [name]}, needs]}]}))
  return parts


def _negated_or_fail(source, part, keyword):
  negation = negated(source, part.inside(keyword))
  if negation is None:
    fail(part.at, f"the schema of {keyword!r} is one that cannot be negated "
         "here.")
  return negation


def negated(source: Source, part: Part) -> Part | None:
  """Returns a part of values that are not of a part; None if it is unknown."""
  node = _negated(source, part)
  return None if node is None else part.other(node)


def _negated(source, part):
  """Returns the node of a negation, or None."""
  if isinstance(part.node, bool):
    return not part.node
  schema_source.spend(source, part.at)
  schema_source.check_keywords(part)
  options, unknown = [], False
  for keyword in part.node:
    for option in _of_keyword(source, part, keyword):
      unknown = unknown or option is None
      options.append(option)
  options = [x for x in options if x not in (None, False)]
  if True in options:
    return True
  return {"anyOf": options} if options else None if unknown else False


def _of_keyword(source, part, keyword):
  """Returns nodes of values that fail by one keyword; None where unknown."""
  given = part.node[keyword]
  if keyword == "type":
    types = schema_source.types_of(part)
    rest = [x for x in schema_source.TYPES if x not in types and not (
        x == "number" and "integer" in types)]
    # Numbers that are no integers have no keyword.
    return [{"type": rest}] * bool(rest) + [None] * ("integer" in types)
  if keyword in ("enum", "const"):
    return _other_values(given if keyword == "enum" else [given])
  if keyword == "required":
    return [{"type": "object", "properties": {name: False}} for name in given]
  if keyword == "properties":
    return [x if x in (None, False) else
            {"type": "object", "required": [name], "properties": {name: x}}
            for name in given
            for x in [_negated(source, part.inside(keyword, name))]]
  if keyword == "pattern":
    return [{"type": "string", NOT_PATTERNS: (given,)}]
  if keyword in _OPPOSITE and not isinstance(given, bool):
    name, change, json_type = _OPPOSITE[keyword]
    bound = given + change
    return [{"type": json_type, name: bound}] * (
        bound >= 0 or json_type == "number")
  if keyword == "not":
    return [given]
  if keyword == "allOf":
    return [_negated(source, x) for x in schema_source.list_at(part, keyword)]
  if keyword == "anyOf":
    nodes = [_negated(source, x) for x in schema_source.list_at(part, keyword)]
    return [None if None in nodes else {"allOf": nodes}]
  if keyword == "$ref":
    try:
      target = schema_source.follow(source, part)
    except Endless:
      return [None]
    return [_negated(source, target)]
  known = (*schema_source.GENERAL, *(
      x for y in schema_source.KEYWORDS.values() for x in y))
  return [None] if keyword in known else []


def _other_values(given):
  """Returns nodes of values that are none of some."""
  types = {type(x) for x in given}
  rest = [name for name, python in (
      ("null", type(None)), ("array", list), ("object", dict))
          if python not in types]
  nodes = [{"type": rest}] if rest else []
  nodes.append({"type": "string", NOT_VALUES: tuple(
      x for x in given if isinstance(x, str))})
  nodes += [{"const": x} for x in (True, False)
            if not any(x is y for y in given)]
  numbers = sorted({x for x in given if isinstance(x, (int, float)) and
                    not isinstance(x, bool)})
  bounds = [None, *numbers, None]
  for low, high in zip(bounds, bounds[1:]):
    nodes.append({"type": "number", **(
        {} if low is None else {"exclusiveMinimum": low}), **(
            {} if high is None else {"exclusiveMaximum": high})})
  return nodes
