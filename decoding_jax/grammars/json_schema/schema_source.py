"""A JSON schema with its references, and what its parts may be."""

import dataclasses
import re
from typing import Any
from urllib import parse

TYPES = ("null", "boolean", "number", "string", "array", "object")
# Keywords that restrict a value of one type.
KEYWORDS = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
               "multipleOf"),
    "string": ("minLength", "maxLength", "pattern", "format"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems",
              "uniqueItems"),
    "object": ("properties", "required", "additionalProperties",
               "patternProperties", "propertyNames", "minProperties",
               "maxProperties", "dependencies", "dependentRequired",
               "dependentSchemas")}
# Those that combine schemas, or are for values of any type.
GENERAL = ("type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf", "not",
           "if", "then", "else")
# Keywords of JSON Schema that restrict values, but are not honoured here.
REFUSED = frozenset((
    "contains", "minContains", "maxContains", "unevaluatedItems",
    "unevaluatedProperties", "$dynamicRef", "$recursiveRef", "extends",
    "disallow", "divisibleBy"))
# Levels of a schema, and of the values in it.
MAX_DEPTH = 100
# Parts of a schema, references written out.
MAX_PARTS = 20_000
# How often a reference to a part that contains it is followed.
MAX_RECURSION = 3


class Unsupported(ValueError):
  """A schema for which no exact automaton can be made."""


class Endless(Unsupported):
  """A part that contains itself, at a depth at which it is left out."""


def fail(at: str, problem: str, error=Unsupported):
  """Raises an error that names the path `at` within the schema."""
  raise error(f"schema at {at}: {problem}")


@dataclasses.dataclass
class Source:
  """A schema, and what has been spent on it."""
  schema: Any  # as parsed from JSON
  parts: int = 0  # of `MAX_PARTS`
  # Branches of parts that were met before.
  known: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Part:
  """A part of a schema, where it is, and the references that led there."""
  node: Any
  at: str = "#"
  refs: tuple = ()

  def inside(self, *names) -> "Part":
    """Returns a part of this one, by its path."""
    node = self.node
    for name in names:
      node = node[name]
    return Part(node, "/".join([self.at, *map(str, names)]), self.refs)

  def other(self, node) -> "Part":
    """Returns a part with another node at the same path."""
    return Part(node, self.at, self.refs)


def spend(source: Source, at: str, parts: int = 1):
  """Raises `Unsupported` if a schema has more parts than allowed."""
  source.parts += parts
  if source.parts > MAX_PARTS:
    fail(at, f"more than {MAX_PARTS} parts, references written out, the limit.")


def check_depth(schema):
  """Raises ValueError for a schema nested too deep, without recursion."""
  level, depth = [schema], 0
  while level:
    if depth > MAX_DEPTH:
      raise ValueError(f"nested more than {MAX_DEPTH} levels deep, the limit.")
    # Parts of one level; the same object may be in several places.
    inside = [y for x in level if isinstance(x, (dict, list, tuple))
              for y in (x.values() if isinstance(x, dict) else x)]
    level = list({id(x): x for x in inside}.values())
    depth += 1


def check_keywords(part: Part):
  """Raises `Unsupported` for a part that has a refused keyword."""
  for keyword in part.node:
    if keyword in REFUSED:
      known = ", ".join([*GENERAL, *(x for y in KEYWORDS.values() for x in y)])
      fail(part.at, f"{keyword!r} is not supported; supported are {known}, and "
           "annotations such as title.")


def follow(source: Source, part: Part) -> Part:
  """Returns what a `$ref` refers to; Unsupported, or Endless after a while."""
  ref = part.node["$ref"]
  at = f"{part.at}/$ref"
  base = next((source.schema[key] for key in ("$id", "id")
               if isinstance(source.schema, dict) and
               isinstance(source.schema.get(key), str)), None)
  path = ref
  if base and ref.split("#")[0] == base.split("#")[0]:
    path = "#" + ref.partition("#")[2]
  if not re.match("#(/|$)", path):
    fail(at, f"{ref!r}: only references such as #/$defs/name are supported.")
  node = source.schema
  for name in path.split("/")[1:]:
    name = parse.unquote(name).replace("~1", "/").replace("~0", "~")
    try:
      node = node[int(name) if isinstance(node, list) else name]
    except (LookupError, TypeError, ValueError):
      fail(at, f"there is no {ref}.")
  refs = (*part.refs, path)
  if refs.count(path) > MAX_RECURSION:
    fail(at, f"{ref} contains itself without an end.", Endless)
  return Part(node, path, refs)


def types_of(part: Part) -> tuple[str, ...]:
  """Returns the types that a part allows; "integer" stands for itself."""
  if "type" not in part.node:
    return TYPES
  given = part.node["type"]
  given = given if isinstance(given, list) else [given]
  return tuple(x for x in given if x != "integer" or "number" not in given)


def list_at(part: Part, keyword: str):
  """Returns the parts of a keyword that has a list of schemas."""
  return [part.inside(keyword, i) for i in range(len(part.node[keyword]))]
