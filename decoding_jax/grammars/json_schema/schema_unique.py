"""Lists without repeated items, of which there are finitely many.

A state holds the values so far; if that needs too many states, items come in
the order of the schema.
"""

import dataclasses
import math

from decoding_jax.grammars.json_schema import schema_branches
from decoding_jax.grammars.json_schema.schema_source import Source, fail
from decoding_jax.grammars.json_schema.schema_types import (Array, Boolean,
                                                            Null, Number, Value)

# Sets of values that were there.
MAX_SETS = 256
# Integers between two bounds that are listed.
_MAX_INTEGERS = 64


@dataclasses.dataclass(frozen=True)
class Items:
  """The items of a list, and which may follow which."""
  values: tuple[Value, ...]  # all of them
  # Of each item, the last one for all that follow, indices of its values.
  allowed: tuple[frozenset, ...]
  most: int  # items
  cap: int  # items are counted up to here
  ordered: bool  # whether items come in the order of `values`

  def at(self, i) -> frozenset:
    """Returns the indices of the values that item `i` may have."""
    return self.allowed[min(i, len(self.allowed) - 1)]


def items(source: Source, array: Array, most: int | None,
          max_sets: int) -> Items:
  """Returns the items of a list in which none is repeated."""
  listed = [_values_of(source, schema_branches.item(array, i))
            for i in range(len(array.first) + 1)]
  values = {x.key: x for row in listed for x in row}
  index = {key: i for i, key in enumerate(values)}
  count = len(values)
  most = count if most is None else min(most, count)
  return Items(
      tuple(values.values()),
      tuple(frozenset(index[x.key] for x in row) for row in listed), most,
      max(array.least, len(array.first)) if most == count else most,
      sum(math.comb(count, k) for k in range(most + 1)) > max_sets)


def _values_of(source, parts) -> list[Value]:
  listed = []
  for x in schema_branches.of_parts(source, parts):
    if isinstance(x, Value):
      listed.append(x)
      continue
    values = (None,) if isinstance(x, Null) else (
        (False, True) if isinstance(x, Boolean) else _integers(x))
    if values is None:
      fail(parts[0].at if parts else "#", "'uniqueItems' is supported for "
           "items of an 'enum', a 'const', booleans, null and integers between "
           "near bounds, or with 'maxItems' of 1; XGrammar takes such a "
           "schema, and ignores the keyword.")
    listed += [Value(schema_branches.key_of(y), y) for y in values
               if schema_branches.conforms(source, y, [x])]
  return listed


def _integers(x):
  """Returns the integers of a branch of numbers; None for too many, others."""
  if not isinstance(x, Number) or not x.integer or None in (x.low, x.high) or (
      x.high - x.low > _MAX_INTEGERS):
    return None
  return range(math.floor(x.low), math.ceil(x.high) + 1)
