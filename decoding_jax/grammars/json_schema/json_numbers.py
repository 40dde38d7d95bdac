"""Numbers of JSON between bounds, as automata over characters."""

import functools

from decoding_jax.grammars import finite_automata, regex
from decoding_jax.grammars.finite_automata import Dfa

_INTEGER = "(?:0|[1-9][0-9]*)"
_FRACTION = r"(?:\.[0-9]+)?"
_ANY = rf"-?{_INTEGER}{_FRACTION}(?:[eE][+-]?[0-9]+)?"
# Digits of a bound, and the largest divisor.
MAX_DIGITS, MAX_DIVISOR = 40, 1000


class Unsupported(ValueError):
  """Bounds or a divisor for which there is no automaton."""


@functools.lru_cache(maxsize=256)
def between(low, high, open_low: bool = False, open_high: bool = False,
            integer: bool = False, multiple=None) -> Dfa:
  """Returns the automaton over characters of the numbers between two bounds,
  each a `decimal.Decimal` or None; an open bound is excluded. `multiple` is an
  integer up to `MAX_DIVISOR` or a power of ten. Only unconditioned numbers have
  exponents. Raises Unsupported for other multiples and long bounds."""
  if multiple is not None:
    integer = integer or multiple == multiple.to_integral_value()
  fraction = "" if integer else _fraction(multiple)
  patterns = [f"-?{_INTEGER}{fraction}"]
  if low is not None:
    patterns.append(_from(low, open_low))
  if high is not None:
    patterns.append(_to(high, open_high))
  if patterns == [f"-?{_INTEGER}{_FRACTION}"]:
    patterns = [_ANY]
  parts = [regex.search(f"^(?:{x})$") for x in patterns]
  if integer and multiple is not None and multiple != 1:
    parts.append(_multiples(multiple))
  return functools.reduce(finite_automata.intersect, parts)


def of_constraints(x) -> Dfa:
  """Returns the automaton of a `schema_types.Number`."""
  bounds = x.low, x.high, x.open_low, x.open_high, x.integer
  dfa = between(*bounds, *x.multiples[:1])
  for multiple in x.multiples[1:]:
    dfa = finite_automata.intersect(dfa, between(*bounds, multiple))
  return dfa


def _fraction(multiple):
  """Returns the pattern of fractions, "" included, of multiples."""
  if multiple is None:
    return _FRACTION
  sign, digits, exponent = multiple.normalize().as_tuple()
  if sign or digits != (1,) or exponent >= 0:
    raise Unsupported(f"multiples of {multiple} are not supported: integers up "
                      f"to {MAX_DIVISOR} and powers of ten are.")
  return rf"(?:\.[0-9]{{1,{-exponent}}}0*)?"


def _from(low, is_open):
  """Returns the pattern of numbers from a bound on."""
  if low >= 0:
    return _at_least(low, is_open)
  return f"{_INTEGER}{_FRACTION}|-(?:{_at_most(-low, is_open)})"


def _to(high, is_open):
  """Returns the pattern of numbers up to a bound."""
  if high < 0 or high == 0 and is_open:
    return f"-(?:{_at_least(-high, is_open)})"
  return f"{_at_most(high, is_open)}|-{_INTEGER}{_FRACTION}"


def _at_least(bound, is_open):
  """Returns the pattern of numbers without sign from `bound` >= 0 on."""
  whole, digits = _split(bound)
  size = len(str(whole + 1))
  above = f"{_integers(whole + 1, 10**size - 1)}|[1-9][0-9]{{{size},}}"
  return f"(?:{above}){_FRACTION}|{whole}{_digits_from(digits, is_open)}"


def _at_most(bound, is_open):
  """Returns the pattern of numbers without sign up to a bound, not "< 0"."""
  whole, digits = _split(bound)
  parts = [_integers(0, whole - 1) + _FRACTION] if whole else []
  ends = _digits_to(digits, is_open)
  parts += [f"{whole}(?:{'|'.join(ends)})"] if ends else []
  return "|".join(parts)


def _split(x):
  """Returns the integer part of a number, and the digits of its fraction."""
  text = format(x, "f")
  if len(text) > MAX_DIGITS:
    raise Unsupported(f"{x}: bounds of at most {MAX_DIGITS} digits are "
                      "supported.")
  whole, _, fraction = text.partition(".")
  return int(whole), fraction.rstrip("0")


def _digits_from(low, is_open):
  """Returns the pattern of fractions that are at least so large."""
  parts = [rf"\.{low[:i]}[{int(x) + 1}-9][0-9]*"
           for i, x in enumerate(low) if x != "9"]
  if is_open:
    parts.append(rf"\.{low}[0-9]*[1-9][0-9]*")
  else:
    parts.append(rf"\.{low}[0-9]*" if low else r"(?:\.[0-9]+)?")
  return f"(?:{'|'.join(parts)})"


def _digits_to(high, is_open):
  """Returns patterns of fractions that are at most so large."""
  parts = [rf"\.{high[:i]}[0-{int(x) - 1}][0-9]*"
           for i, x in enumerate(high) if x != "0"]
  # The bound's own beginnings, with zeros at will: those are less than it.
  return parts + [rf"\.{high[:i]}0*" if i else r"(?:\.0+)?"
                  for i in range(len(high) + (not is_open))]


def _integers(low, high):
  """Returns the pattern of the integers from `low` >= 0 to `high`."""
  if low > high:
    return ""
  parts = []
  for size in range(len(str(low)), len(str(high)) + 1):
    first = max(low, 10**(size - 1) if size > 1 else 0)
    parts += _same_size(str(first), str(min(high, 10**size - 1)))
  return f"(?:{'|'.join(parts)})"


def _same_size(low, high):
  """Returns patterns of the integers between two of as many digits."""
  if not low:
    return [""]
  rest = len(low) - 1
  if low[0] == high[0]:
    return [low[0] + x for x in _same_size(low[1:], high[1:])]
  first, last, parts = int(low[0]), int(high[0]), []
  if low[1:] != "0" * rest:
    parts += [low[0] + x for x in _same_size(low[1:], "9" * rest)]
    first += 1
  tail = []
  if high[1:] != "9" * rest:
    tail = [high[0] + x for x in _same_size("0" * rest, high[1:])]
    last -= 1
  if first <= last:
    parts.append(f"[{first}-{last}]" + (f"[0-9]{{{rest}}}" if rest else ""))
  return parts + tail


def _multiples(divisor):
  """Returns the automaton of the integers that are multiples."""
  number = int(divisor)
  if number != divisor or not 0 < number <= MAX_DIVISOR:
    raise Unsupported(f"multiples of {divisor} are not supported: integers up "
                      f"to {MAX_DIVISOR} and powers of ten are.")
  digits = lambda state: [(48 + x, 48 + x, 2 + (10 * state + x) % number)
                          for x in range(10)]
  moves = [[(45, 45, 1), *digits(0)], digits(0),
           *(digits(state) for state in range(number))]
  return Dfa(moves, [False, False, *(not x for x in range(number))])
