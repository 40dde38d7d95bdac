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
  """Texts of some length that have all patterns and formats, and not others.

  Attributes:
    least, most: characters; `most` is None for any number.
    patterns: that are found in the text.
    formats: of `json_strings.FORMATS`.
    not_patterns: that are not found in it.
    not_values: texts that are left out.
  """
  least: int = 0
  most: int | None = None
  patterns: tuple = ()
  formats: tuple = ()
  not_patterns: tuple = ()
  not_values: tuple = ()


@dataclasses.dataclass(frozen=True)
class Array:
  """Lists.

  Attributes:
    first: the parts of each of the first items.
    rest: the parts of all others.
    least, most: items; `most` is None for any number.
    unique: whether no item is repeated.
  """
  first: tuple = ()
  rest: Parts = ()
  least: int = 0
  most: int | None = None
  unique: bool = False


@dataclasses.dataclass(frozen=True)
class Object:
  """Objects.

  Attributes:
    properties: name -> parts, in order.
    patterns: (pattern of names, parts), of which all that match hold.
    others: parts of names that are in neither.
    required: names.
    names: parts that hold for each name, as a string.
    least, most: properties.
  """
  properties: dict = dataclasses.field(default_factory=dict)
  patterns: tuple = ()
  others: Parts = ()
  required: tuple = ()
  names: Parts = ()
  least: int = 0
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
