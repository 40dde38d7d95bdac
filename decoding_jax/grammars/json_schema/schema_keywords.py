"""The keywords of one type, read from a part of a schema."""

import decimal
import functools

from decoding_jax.grammars.json_schema import (json_strings, schema_logic,
                                               schema_source)
from decoding_jax.grammars.json_schema.schema_source import fail
from decoding_jax.grammars.json_schema.schema_types import (Array, Boolean,
                                                            Null, Number,
                                                            Object, String,
                                                            meet_numbers)
from decoding_jax.validation import values as values_lib

# Larger ones have no `float`.
_MAX_NUMBER = 1e300


def _number(part, integer=False) -> Number:
  bounds = {}
  for keyword in schema_source.KEYWORDS["number"]:
    given = part.node.get(keyword)
    if given is None or isinstance(given, bool):
      continue
    if abs(given) > _MAX_NUMBER:
      fail(part.at, f"{keyword!r} is {given!r}: numbers of at most "
           f"{_MAX_NUMBER:.0e} are supported.")
    bounds[keyword] = decimal.Decimal(repr(given))
  number = Number(integer=integer, multiples=tuple(
      x for x in [bounds.get("multipleOf")] if x is not None))
  # In draft 4, these say whether the bound itself is left out.
  of_draft_4 = lambda keyword: part.node.get(keyword) is True
  for low, high, open_low, open_high in (
      (bounds.get("minimum"), bounds.get("maximum"),
       of_draft_4("exclusiveMinimum"), of_draft_4("exclusiveMaximum")),
      (bounds.get("exclusiveMinimum"), bounds.get("exclusiveMaximum"), True,
       True)):
    number = meet_numbers(number, Number(
        low, high, open_low and low is not None,
        open_high and high is not None))
  return number


def _limits(part, low, high):
  """Returns the least and the largest number; None for no limit."""
  most = part.node.get(high)
  return int(part.node.get(low, 0)), None if most is None else int(most)


def _string(part) -> String:
  node, formats = part.node, ()
  if "format" in node:
    name = node["format"]
    if name in json_strings.UNKNOWN_FORMATS:
      fail(part.at, f"'format' is {name!r}, which is not supported; supported "
           f"are {', '.join(json_strings.FORMATS)}, and a 'pattern'.")
    formats = (name,) if name in json_strings.FORMATS else ()
  patterns = (node["pattern"],) if "pattern" in node else ()
  for pattern in patterns:
    _check_pattern(part, pattern)
  return String(*_limits(part, "minLength", "maxLength"), patterns, formats,
                *(tuple(node.get(x, ())) for x in (
                    schema_logic.NOT_PATTERNS, schema_logic.NOT_VALUES)))


def _check_pattern(part, pattern):
  try:
    json_strings.of_pattern(pattern)
  except ValueError as e:
    fail(part.at, f"'pattern' is {values_lib.shortened(pattern)}: {e}")


def _array(part) -> Array:
  node = part.node
  least, most = _limits(part, "minItems", "maxItems")
  keyword = "prefixItems" if "prefixItems" in node else "items"
  if isinstance(node.get(keyword), list):
    first = tuple((part.inside(keyword, i),)
                  for i in range(len(node[keyword])))
    rest = "items" if keyword == "prefixItems" else "additionalItems"
  else:
    first, rest = (), "items"
  others = (part.inside(rest),) if node.get(rest, True) is not True else ()
  return Array(first, others, least, most, node.get("uniqueItems", False) and (
      most is None or most > 1))


def _object(part) -> Object:
  node = part.node
  mapping = lambda keyword: {name: part.inside(keyword, name)
                             for name in node.get(keyword, ())}
  for pattern in mapping("patternProperties"):
    _check_pattern(part, pattern)
  one = lambda keyword: ((part.inside(keyword),)
                         if node.get(keyword, True) is not True else ())
  return Object(
      {name: (x,) for name, x in mapping("properties").items()},
      tuple((name, (x,)) for name, x in mapping("patternProperties").items()),
      one("additionalProperties"),
      tuple(dict.fromkeys(node.get("required", ()))),
      one("propertyNames"), *_limits(part, "minProperties", "maxProperties"))


# How the branch of the values of one type, or of integers, is made of a part.
BRANCHES = {
    "null": lambda part: Null(), "boolean": lambda part: Boolean(),
    "number": _number, "integer": functools.partial(_number, integer=True),
    "string": _string, "array": _array, "object": _object}
