"""What a schema allows, as a list of branches of one type each.

`allOf`, `$ref` and adjacent keywords are intersected, `anyOf` is a union. Parts
of parts stay lists of schemas until they are needed.
"""

import collections
import dataclasses
import decimal
import itertools
import math

from decoding_jax.grammars import finite_automata
from decoding_jax.grammars.json_schema import (json_numbers, json_strings,
                                               schema_keywords, schema_logic,
                                               schema_source, schema_types)
from decoding_jax.grammars.json_schema.schema_source import (Endless, Part,
                                                             Source, fail)
from decoding_jax.grammars.json_schema.schema_types import (Array, Boolean,
                                                            Null, Number,
                                                            Object, Parts,
                                                            String, Value,
                                                            is_never)

# Branches of a part.
MAX_BRANCHES = 400
# Pairs of branches of `oneOf`.
MAX_COMPARISONS = 40_000


def of_parts(source: Source, parts: Parts) -> list:
  """Returns the branches of parts of which all hold."""
  if not parts:
    return any_branches()
  key = tuple((id(x.node), x.at, x.refs) for x in parts)
  if key not in source.known:
    branches = of_part(source, parts[0])
    for part in parts[1:]:
      branches = meet(source, branches, of_part(source, part), part.at)
    # With the parts, so that no new node gets the id of one of them.
    source.known[key] = branches, parts
  return source.known[key][0]


def any_branches() -> list:
  """Returns the branches of all values."""
  return [Null(), Boolean(), Number(), String(), Array(), Object()]


def of_part(source: Source, part: Part) -> list:
  """Returns the branches of a part."""
  schema_source.spend(source, part.at)
  if part.node is True:
    return any_branches()
  if part.node is False:
    return []
  schema_source.check_keywords(part)
  branches = [schema_keywords.BRANCHES[name](part)
              for name in schema_source.types_of(part)]
  node = part.node
  if "enum" in node or "const" in node:
    branches = _values(source, part, branches)
  if "$ref" in node:
    target = schema_source.follow(source, part)
    branches = meet(source, branches, of_part(source, target), part.at)
  for x in schema_source.list_at(part, "allOf") if "allOf" in node else ():
    branches = meet(source, branches, of_part(source, x), part.at)
  for name, joined in (("anyOf", union), ("oneOf", _exactly_one)):
    if name in node:
      options = joined(source, schema_source.list_at(part, name))
      branches = meet(source, branches, options, part.at)
  for x in schema_logic.rewritten(source, part):
    branches = meet(source, branches, of_part(source, x), part.at)
  return branches


def _exactly_one(source, options) -> list:
  """Returns the branches of values that are of one part only."""
  disjoint, branches = {}, [of_part(source, x) for x in options]
  if all(isinstance(x, Value) for mine in branches for x in mine):
    times = collections.Counter(x.key for mine in branches for x in mine)
    return [x for mine in branches for x in mine if times[x.key] == 1]
  sizes = list(map(len, branches))
  if sum(sizes)**2 > MAX_COMPARISONS:
    fail(options[0].at, f"{sum(sizes)} alternatives to tell apart: at most "
         f"{math.isqrt(MAX_COMPARISONS)} are supported; 'anyOf' need not tell "
         "them apart.")
  for i, (option, mine) in enumerate(zip(options, branches)):
    for other, theirs in zip(options[:i] + options[i + 1:],
                             branches[:i] + branches[i + 1:]):
      both = meet(source, mine, theirs, option.at)
      if all(is_empty(source, x) for x in both):
        continue
      negated = schema_logic.negated(source, other)
      if negated is None:
        fail(option.at, "it is not seen how its values differ from values of "
             f"{other.at}; 'anyOf' instead of 'oneOf' need not tell them "
             "apart.")
      mine = meet(source, mine, of_part(source, negated), option.at)
    disjoint.update((_key(x), x) for x in mine)
  return list(disjoint.values())


def is_empty(source: Source, x, levels: int = 4) -> bool:
  """Returns whether a branch surely has no value, some `levels` deep."""
  if isinstance(x, Number):
    return finite_automata.is_empty(json_numbers.of_constraints(x))
  if isinstance(x, String):
    dfa = json_strings.of_constraints(x)
    return dfa is not None and finite_automata.is_empty(dfa)
  if not isinstance(x, (Array, Object)):
    return False
  if x.most is not None and x.least > x.most:
    return True
  parts = ([item(x, i) for i in range(min(x.least, len(x.first) + 1))]
           if isinstance(x, Array) else
           [property_parts(x, name) for name in x.required])
  return levels > 0 and any(
      all(is_empty(source, y, levels - 1) for y in of_parts(source, y_parts))
      for y_parts in parts if y_parts)


def union(source: Source, options) -> list:
  """Returns the branches of any of some parts; endless ones are left out."""
  branches, error = [], None
  for x in options:
    try:
      branches += of_part(source, x)
    except Endless as e:
      error = e
  if not branches and error:
    raise error
  return list({_key(x): x for x in branches}.values())


def meet(source: Source, xs: list, ys: list, at: str) -> list:
  """Returns the branches of what two lists of branches both allow."""
  branches = {}
  for x, y in itertools.product(xs, ys):
    both = _meet(source, x, y)
    if both is not None:
      branches[_key(both)] = both
    if len(branches) > MAX_BRANCHES and not isinstance(both, Value):
      fail(at, f"more than {MAX_BRANCHES} combinations of its schemas, the "
           "limit.")
  return list(branches.values())


def _key(branch):
  return (branch if not isinstance(branch, (Object, Value, Array)) else
          (type(branch).__name__, branch.key) if isinstance(branch, Value) else
          id(branch))


def _meet(source, x, y):
  """Returns the branch of what two branches both allow; None for nothing."""
  if isinstance(x, Value) or isinstance(y, Value):
    x, y = (x, y) if isinstance(x, Value) else (y, x)
    return x if conforms(source, x.value, [y]) else None
  if type(x) is not type(y):
    return None
  if isinstance(x, Number):
    return schema_types.meet_numbers(x, y)
  if isinstance(x, String):
    return String(max(x.least, y.least), schema_types.smaller(x.most, y.most),
                  *(tuple(dict.fromkeys([*a, *b])) for a, b in (
                      (x.patterns, y.patterns), (x.formats, y.formats),
                      (x.not_patterns, y.not_patterns),
                      (x.not_values, y.not_values))))
  if isinstance(x, Array):
    if x == Array() or y == Array():
      return y if x == Array() else x
    size = max(len(x.first), len(y.first))
    first = tuple(item(x, i) + item(y, i) for i in range(size))
    return Array(first, x.rest + y.rest, max(x.least, y.least),
                 schema_types.smaller(x.most, y.most), x.unique or y.unique)
  return _meet_objects(x, y) if isinstance(x, Object) else x


def item(array: Array, i: int) -> Parts:
  """Returns the parts of item `i` of a list."""
  return array.first[i] if i < len(array.first) else array.rest


def _meet_objects(x, y):
  if x == Object() or y == Object():
    return y if x == Object() else x
  # A name of a pattern of one is one of the others of the other.
  if x.others and y.patterns:
    x = _names_only(x)
  if y.others and x.patterns:
    y = _names_only(y)
  properties = {name: property_parts(x, name) + property_parts(y, name)
                for name in {**x.properties, **y.properties}}
  return Object(properties, x.patterns + y.patterns, x.others + y.others,
                tuple(dict.fromkeys(x.required + y.required)),
                x.names + y.names, max(x.least, y.least),
                schema_types.smaller(x.most, y.most))


def _names_only(x):
  """Returns an object that restricts names where it allows no others."""
  if not is_never(x.others):
    fail(x.others[0].at, "'additionalProperties' beside 'patternProperties' of "
         "another schema is supported only if it is false.")
  names = [{"pattern": pattern} for pattern, _ in x.patterns]
  if x.properties:
    names.append({"enum": list(x.properties)})
  return dataclasses.replace(
      x, others=(), names=(*x.names, Part({"anyOf": names} if names else False,
                                          x.others[0].at)))


def property_parts(x: Object, name: str) -> Parts:
  """Returns the parts that hold for the value of a property."""
  own = x.properties.get(name, ())
  matching = [parts for pattern, parts in x.patterns
              if json_strings.has(json_strings.of_pattern(pattern), name)]
  if name not in x.properties and not matching:
    return x.others
  return own + tuple(itertools.chain(*matching))


def _values(source, part, branches):
  given = []
  if "enum" in part.node:
    given = part.node["enum"]
  if "const" in part.node:
    const = part.node["const"]
    given = [const] if not given or any(
        key_of(x) == key_of(const) for x in given) else []
  schema_source.spend(source, part.at, len(given) // 8)
  for x in given:
    _check_finite(part, x)
  values = {key_of(x): x for x in given if conforms(source, x, branches)}
  return [Value(key, x) for key, x in values.items()]


def _check_finite(part, value):
  """Raises `Unsupported` for numbers that JSON has not."""
  if isinstance(value, (list, dict)):
    for inside in value.values() if isinstance(value, dict) else value:
      _check_finite(part, inside)
  elif isinstance(value, float) and not math.isfinite(value):
    fail(part.at, f"{value} is no number of JSON.")


def key_of(value) -> str:
  """Returns a text that is equal for equal values of JSON."""
  if isinstance(value, bool) or value is None or isinstance(value, str):
    return f"{type(value).__name__}:{value}"
  if isinstance(value, (int, float)):
    return f"number:{decimal.Decimal(repr(value)).normalize()}"
  if isinstance(value, list):
    return f"[{','.join(map(key_of, value))}]"
  return "{" + ",".join(f"{key!r}:{key_of(value[key])}"
                        for key in sorted(value)) + "}"


def conforms(source: Source, value, branches) -> bool:
  """Returns whether a value is of one of some branches."""
  return any(_conforms(source, value, x) for x in branches)


def _conforms(source, value, x):
  if isinstance(x, Value):
    return x.key == key_of(value)
  if value is None or isinstance(value, bool):
    return isinstance(x, Null if value is None else Boolean)
  if isinstance(value, (int, float)):
    return isinstance(x, Number) and _number_conforms(value, x)
  if isinstance(value, str):
    return isinstance(x, String) and json_strings.has(
        json_strings.of_constraints(x), value)
  within = lambda y: x.least <= len(y) <= (
      len(y) if x.most is None else x.most)
  holds = lambda inner, parts: not parts or conforms(
      source, inner, of_parts(source, parts))
  if isinstance(value, list):
    return isinstance(x, Array) and within(value) and not (
        x.unique and len(set(map(key_of, value))) < len(value)) and all(
            holds(inner, item(x, i)) for i, inner in enumerate(value))
  return isinstance(x, Object) and within(value) and (
      all(name in value for name in x.required)) and all(
          holds(inner, property_parts(x, name)) and holds(name, x.names)
          for name, inner in value.items())


def _number_conforms(value, x):
  number = decimal.Decimal(repr(value))
  return (number.is_finite() and
          (x.low is None or number > x.low or
           number == x.low and not x.open_low) and
          (x.high is None or number < x.high or
           number == x.high and not x.open_high) and
          (not x.integer or number == number.to_integral_value()) and
          all(number % y == 0 for y in x.multiples))
