"""What a schema allows of one type, as data."""

import dataclasses
from typing import Any, NamedTuple

# Parts of which all hold; () allows everything.
Parts = tuple


@dataclasses.dataclass(frozen=True)
class Null:
  """The value null."""


@dataclasses.dataclass(frozen=True)
class Boolean:
  """Both truth values."""


class Value(NamedTuple):
  """One value, as `key`, which differs for 1 and true, and itself."""
  key: str
  value: Any


@dataclasses.dataclass(frozen=True)
class Number:
  """Numbers between bounds; see `json_numbers.between`."""
  low: Any = None
  high: Any = None
  open_low: bool = False
  open_high: bool = False
  integer: bool = False
  multiples: tuple = ()


@dataclasses.dataclass(frozen=True)
class String:
  """Texts of some length that have all patterns and formats, and not others."""
  least: int = 0  # characters; `most` is None for any number
  most: int | None = None
  patterns: tuple = ()  # that match in the text
  formats: tuple = ()  # of `json_strings.FORMATS`
  not_patterns: tuple = ()  # that do not match in it
  not_values: tuple = ()  # texts that are left out


@dataclasses.dataclass(frozen=True)
class Array:
  """Lists."""
  first: tuple = ()  # the parts of each of the first items
  rest: Parts = ()  # the parts of all others
  least: int = 0  # items; `most` is None for any number
  most: int | None = None
  unique: bool = False  # whether no item is repeated


@dataclasses.dataclass(frozen=True)
class Object:
  """Objects."""
  # Name -> parts, in order.
  properties: dict = dataclasses.field(default_factory=dict)
  # (pattern of names, parts), of which all that match hold.
  patterns: tuple = ()
  others: Parts = ()  # parts of names that are in neither
  required: tuple = ()  # names
  names: Parts = ()  # parts that hold for each name, as a string
  least: int = 0  # properties
  most: int | None = None


def is_never(parts: Parts) -> bool:
  """Returns whether parts allow nothing, as far as this is seen at once."""
  return any(x.node is False for x in parts)


def smaller(x, y):
  """Returns the smaller of two limits, None for no limit."""
  return y if x is None else x if y is None else min(x, y)


def meet_numbers(x: Number, y: Number) -> Number:
  """Returns what two branches of numbers both allow."""
  low = max((v for v in ((x.low, x.open_low), (y.low, y.open_low))
             if v[0] is not None), default=(None, False))
  high = min(((v, not is_open) for v, is_open in (
      (x.high, x.open_high), (y.high, y.open_high)) if v is not None),
             default=(None, True))
  return Number(low[0], high[0], low[1], not high[1],
                x.integer or y.integer,
                tuple(dict.fromkeys(x.multiples + y.multiples)))
