"""Numbers of JSON between bounds, as automata over characters."""

import decimal
import functools
import math

from decoding_jax.grammars import finite_automata, regex
from decoding_jax.grammars.finite_automata import Dfa

_INTEGER = "(?:0|[1-9][0-9]*)"
_ANY = rf"-?{_INTEGER}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
# Digits of a bound, and the largest divisor.
MAX_DIGITS, MAX_DIVISOR = 40, 1000


class Unsupported(ValueError):
  """Bounds or a divisor for which there is no automaton."""


@functools.lru_cache(maxsize=256)
def between(low, high, open_low: bool = False, open_high: bool = False,
            integer: bool = False, multiple=None) -> Dfa:
  """Returns the automaton over characters of the numbers between two bounds.

  Bounds are `decimal.Decimal`, or None; an open one is left out itself. Numbers
  are multiples of `multiple`: an integer up to `MAX_DIVISOR`, or a power of
  ten. Numbers between bounds have no exponents. Raises Unsupported for others.
  """
  if multiple is not None:
    integer = integer or multiple == multiple.to_integral_value()
  if integer:
    low, open_low = (None if low is None else _floor(low, open_low, 1)), False
    high, open_high = (None if high is None else
                       _floor(high, open_high, -1)), False
  if low is None and high is None:
    fraction = "" if integer else _fraction(multiple)
    parts = [_ANY if multiple is None and not integer
             else f"-?{_INTEGER}{fraction}"]
  else:
    fraction = "" if integer else _fraction(multiple)
    parts = _parts(low, high, open_low, open_high, fraction)
  found = regex.search("^(?:(?!))$") if not parts else (
      regex.search(f"^(?:{'|'.join(parts)})$"))
  if integer and multiple is not None and multiple != 1:
    found = finite_automata.intersect(found, _multiples(multiple))
  return found


def of_constraints(x) -> Dfa:
  """Returns the automaton of a `schema_types.Number`."""
  bounds = x.low, x.high, x.open_low, x.open_high, x.integer
  found = between(*bounds, *x.multiples[:1])
  for multiple in x.multiples[1:]:
    found = finite_automata.intersect(found, between(*bounds, multiple))
  return found


def _floor(bound, is_open, sign):
  """Returns the integer that is the bound of integers."""
  rounding = decimal.ROUND_CEILING if sign > 0 else decimal.ROUND_FLOOR
  found = bound.to_integral_value(rounding)
  return found + sign if is_open and found == bound else found


def _fraction(multiple):
  """Returns the pattern of fractions, "" included, of multiples."""
  if multiple is None:
    return r"(?:\.[0-9]+)?"
  sign, digits, exponent = multiple.normalize().as_tuple()
  if sign or digits != (1,) or exponent >= 0:
    raise Unsupported(f"multiples of {multiple} are not supported; those of "
                      f"integers up to {MAX_DIVISOR} and of powers of ten are.")
  return rf"(?:\.[0-9]{{1,{-exponent}}}0*)?"


def _parts(low, high, open_low, open_high, fraction):
  """Returns patterns of numbers of either sign, of which at least one holds."""
  zero = decimal.Decimal(0)
  parts = []
  if high is None or high > 0 or high == 0 and not open_high:
    least = (zero, False) if low is None or low < 0 else (low, open_low)
    parts.append(("", *least, high, open_high))
  if low is None or low < 0:
    least = (zero, False) if high is None or high > 0 or (
        high == 0 and not open_high) else (-high, open_high)
    if high == 0 and open_high:
      least = zero, True
    parts.append(("-", *least, None if low is None else -low, open_low))
  found = []
  for sign, least, open_least, most, open_most in parts:
    if most is not None and (most < least or most == least and (
        open_most or open_least)):
      continue
    both = _magnitudes(least, open_least, most, open_most, fraction)
    found += [f"{sign}{x}" for x in both]
  return found


def _magnitudes(least, open_least, most, open_most, fraction):
  """Returns patterns of the numbers from `least` >= 0 to `most`."""
  first, tail = _split(least)
  found = []
  if most is None:
    found.append(_at_least(first + 1) + fraction)
    last, end = None, ""
  else:
    last, end = _split(most)
    inside = _integers(first + 1, last - 1)
    found += [inside + fraction] if inside else []
  if first == last:
    if not fraction:
      return [*found, str(first)]
    return [*found, *(str(first) + x for x in _fractions(
        tail, open_least, end, open_most, fraction))]
  if not fraction:
    return [*found, str(first), *([] if last is None else [str(last)])]
  found += [str(first) + x for x in _fractions(tail, open_least, None, False,
                                               fraction)]
  if last is not None:
    found += [str(last) + x for x in _fractions("", False, end, open_most,
                                                fraction)]
  return found


def _split(x):
  """Returns the integer part of a number, and the digits of its fraction."""
  text = format(x, "f")
  if len(text) > MAX_DIGITS:
    raise Unsupported(f"{x}: bounds of at most {MAX_DIGITS} digits are "
                      "supported.")
  whole, _, fraction = text.partition(".")
  return int(whole), fraction.rstrip("0")


def _fractions(low, open_low, high, open_high, fraction):
  """Returns patterns of fractions from one to another; None: below 1.

  Those of a bounded number of digits are not bounded from both sides here.
  """
  if fraction != r"(?:\.[0-9]+)?":
    if low or high or open_low or open_high:
      raise Unsupported("'multipleOf' of a fraction with bounds that are no "
                        "integers is not supported.")
    return ["(?:\\.0+)?"] if high == "" else [fraction]
  above = [_digits_from(low, open_low)]
  below = None if high is None else _digits_to(high, open_high)
  if below is None:
    return above
  if below == "" or not above[0]:
    return []
  # Both: a text of one form that has the other as well.
  return [f"(?:{x})" for x in _both(low, open_low, high, open_high)]


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
  """Returns the pattern of fractions that are at most so large; "": none."""
  parts = [rf"\.{high[:i]}[0-{int(x) - 1}][0-9]*"
           for i, x in enumerate(high) if x != "0"]
  if high:
    parts += [rf"\.{high[:i]}0*" if i else r"(?:\.0+)?"
              for i in range(len(high))]
  if not is_open:
    parts.append(rf"\.{high}0*" if high else r"(?:\.0+)?")
  return f"(?:{'|'.join(parts)})" if parts else ""


def _both(low, open_low, high, open_high):
  """Returns patterns of fractions between two of the same integer part."""
  size = max(len(low), len(high))
  a, b = int(low.ljust(size, "0") or 0), int(high.ljust(size, "0") or 0)
  found = []
  for number in range(a, b + 1) if b - a <= MAX_DIVISOR else ():
    digits = str(number).rjust(size, "0") if size else ""
    if number in (a, b) and a == b:
      more = "" if open_low or open_high else "0*"
    elif number == b:
      more = "" if open_high else "0*"
    elif number == a and open_low:
      more = "[0-9]*[1-9][0-9]*"
    else:
      more = "[0-9]*"
    if more:
      found.append(rf"\.{digits}{more}" if digits else r"(?:\.0+)?")
      short = digits.rstrip("0")
      if len(short) < len(digits) and "*[1-9]" not in more:
        found.append(rf"\.{short}0*" if short else r"(?:\.0+)?")
  if b - a > MAX_DIVISOR:
    raise Unsupported("bounds of more than three digits in common fractions "
                      "are not supported.")
  return found


def _at_least(low):
  """Returns the pattern of the integers from `low` >= 0."""
  digits = len(str(low))
  parts = [_integers(low, 10**digits - 1), f"[1-9][0-9]{{{digits},}}"]
  return f"(?:{'|'.join(parts)})"


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
    raise Unsupported(f"multiples of {divisor} are not supported; those of "
                      f"integers up to {MAX_DIVISOR} and of powers of ten are.")
  digits = lambda state: [(48 + x, 48 + x, 2 + (10 * state + x) % number)
                          for x in range(10)]
  moves = [[(45, 45, 1), *digits(0)], digits(0),
           *(digits(state) for state in range(number))]
  return Dfa(moves, [False, False, *(not x for x in range(number))])


def is_multiple(value, multiple) -> bool:
  """Returns whether a number is a multiple of a decimal one."""
  number = decimal.Decimal(repr(value))
  return math.isfinite(value) and number % multiple == 0
