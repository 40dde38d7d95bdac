"""The structure of regular expressions, of two languages.

`parse` reads patterns of JSON Schema (ECMA-262), and most of Rust's `regex`,
matched from end to end. Texts are read between two marks that are no
characters: `^` reads the first, `$` the last.
"""

import functools
import re
import unicodedata
from typing import Any, NamedTuple

HIGHEST = 0x10FFFF
BEGIN, END = -1, HIGHEST + 1
MAX_DEPTH = 100
_DIGITS = ((48, 57),)
_WORDS = ((48, 57), (65, 90), (95, 95), (97, 122))
_BLANKS = ((9, 13), (32, 32), (0xa0, 0xa0), (0x1680, 0x1680), (0x2000, 0x200a),
           (0x2028, 0x2029), (0x202f, 0x202f), (0x205f, 0x205f),
           (0x3000, 0x3000), (0xfeff, 0xfeff))
_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
# Of Unicode: blanks, and what is part of words besides some categories.
_WHITE_SPACE = (*_BLANKS[:-1], (0x85, 0x85))
_WORD_CATEGORIES = ("L", "M", "Nd", "Nl", "Pc")
_OTHER_WORDS = ((0x200c, 0x200d), (0x24b6, 0x24e9), (0x1f130, 0x1f149),
                (0x1f150, 0x1f169), (0x1f170, 0x1f189))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_POSIX = {"alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f",
          "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9",
          "graph": "!-~", "lower": "a-z", "print": " -~",
          "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ",
          "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f"}
_POSIX_CLASS = re.compile(r"\[:(\^?)(\w+):\]")
_REPEAT = re.compile(r"\{(\d+)(,(\d*))?\}")
# Digits of a number of repetitions, of which any is too large.
_DIGITS_READ = 18
_HEX = r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|%s\{([0-9a-fA-F]{1,6})\}"
_HEX_ECMA = re.compile(_HEX % "u")
_HEX_WHOLE = re.compile(_HEX % "[xu]" + "|U([0-9a-fA-F]{8})")
# Letters have no other case beyond.
_CASED = 0x1E944
_FLAGS = re.compile(r"([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])")
_NAME = re.compile(r"P?<([A-Za-z_$][\w$]*)>")


class Set(NamedTuple):
  """One character of some ranges."""
  ranges: tuple


class Sequence(NamedTuple):
  """Parts one after the other."""
  parts: tuple


class Choice(NamedTuple):
  """One of its parts."""
  parts: tuple


class Repeat(NamedTuple):
  """A part `least` to `most` times; None for any number."""
  part: Any
  least: int
  most: int | None


class Ahead(NamedTuple):
  """Look-ahead: the text that follows begins with a part, or does not."""
  part: Any
  holds: bool


class _Reader:
  """A pattern, and the position up to which it was read."""

  def __init__(self, pattern, whole):
    # `whole`: of `parse`. `flags`: set here, "i" and "s"; `depth`: of
    # groups that are open.
    self.pattern, self.position, self.whole = pattern, 0, whole
    self.flags, self.depth = frozenset(), 0

  def take(self, text):
    """Returns whether a text comes next, and skips it."""
    matches = self.pattern.startswith(text, self.position)
    self.position += len(text) * matches
    return matches

  def next(self):
    """Returns the next character."""
    if self.position >= len(self.pattern):
      raise ValueError("it ends too early.")
    self.position += 1
    return self.pattern[self.position - 1]

  def match(self, form):
    """Returns what a regular expression finds here, and skips it; or None."""
    match = form.match(self.pattern, self.position)
    self.position = match.end() if match else self.position
    return match


def parse(pattern: str, whole: bool):
  r"""Returns the structure of a pattern.

  Of ECMA-262, `\d` and `\w` are ASCII. A `whole` is matched from end to end,
  and has the syntax of Rust's `regex`, with `\d`, `\w` and `\s` of Unicode, but
  without ^ and $, boundaries of words, look-around, back references, classes
  within classes, and names of scripts, which raise ValueError.
  """
  reader = _Reader(pattern, whole)
  tree = _alternatives(reader)
  if reader.position < len(reader.pattern):
    raise ValueError("unbalanced ).")
  return tree


def _alternatives(reader):
  parts = [_sequence(reader)]
  while reader.take("|"):
    parts.append(_sequence(reader))
  return parts[0] if len(parts) == 1 else Choice(tuple(parts))


def _sequence(reader):
  parts = []
  while reader.position < len(reader.pattern) and (
      reader.pattern[reader.position] not in "|)"):
    part = _atom(reader)
    bounds = _bounds(reader)
    if bounds and isinstance(part, Ahead):
      raise ValueError("look-ahead cannot be repeated.")
    parts.append(Repeat(part, *bounds) if bounds else part)
  return parts[0] if len(parts) == 1 else Sequence(tuple(parts))


def _bounds(reader):
  """Returns (least, most) of a repetition that comes next; or None."""
  simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
  bounds = next((x for text, x in simple.items() if reader.take(text)), None)
  if not bounds:
    match = reader.match(_REPEAT)
    if not match:
      return None
    least, most = (int(x[:_DIGITS_READ]) if x else None
                   for x in match.group(1, 3))
    most = most if match[2] else least
    if most is not None and most < least:
      raise ValueError(f"{match[0]}: the numbers are out of order.")
    bounds = least, most
  reader.take("?")  # Which match is preferred does not matter.
  return bounds


def _atom(reader):
  character = reader.next()
  if character == "(":
    return _group(reader)
  if character == "[":
    return Set(_class(reader))
  if character == "\\":
    return Set(_any_case(reader, _escape(reader)))
  if character in "*+?" or reader.whole and character == "{":
    raise ValueError(f"nothing to repeat by {character}; a character is "
                     f"written \\{character}.")
  if reader.whole and character in "^$":
    # They would silently forbid the texts around them.
    raise ValueError("it is matched from end to end, so that ^ and $ are not "
                     r"needed; write \^ and \$ for the characters.")
  return Set({"^": ((BEGIN, BEGIN),), "$": ((END, END),),
              ".": _dot(reader)}.get(
                  character, _any_case(reader, (_one(character),))))


def _dot(reader):
  """Returns the ranges of any character, but for ends of lines."""
  if not reader.whole:
    return inverse(_LINE_ENDS)
  return ((0, HIGHEST),) if "s" in reader.flags else inverse((_one("\n"),))


def _one(character):
  return (ord(character),) * 2


def _group(reader):
  reader.depth += 1
  if reader.depth > MAX_DEPTH:
    raise ValueError(f"groups nested more than {MAX_DEPTH} deep, the limit.")
  flags, ahead = reader.flags, None
  if reader.take("?"):
    if not reader.whole and (reader.take("=") or reader.take("!")):
      ahead = reader.pattern[reader.position - 1] == "="
    elif not reader.match(_NAME) and not reader.take(":"):
      if _set_flags(reader) == ")":  # For the rest of the group around it.
        reader.depth -= 1
        return Sequence(())
  part = _alternatives(reader)
  if not reader.take(")"):
    raise ValueError("missing ).")
  reader.depth, reader.flags = reader.depth - 1, flags
  return part if ahead is None else Ahead(part, ahead)


def _set_flags(reader):
  """Sets flags such as "is-m"; returns what comes after them, ":" or ")"."""
  match = reader.match(_FLAGS) if reader.whole else None
  if not match:
    raise ValueError(
        "look-around and back references are not supported, nor comments."
        if reader.whole else
        "look-behind, flags and the like are not supported.")
  # What repeats the least, and lines, change nothing from end to end.
  if set(match[1] + (match[2] or "")) - set("ismU"):
    raise ValueError(f"(?{match[0]}: the flags i and s are supported.")
  reader.flags = reader.flags.union(match[1]).difference(match[2] or "")
  return match[3]


def _escape(reader, in_class=False):
  """Returns the ranges of what comes after a backslash."""
  match = reader.match(_HEX_WHOLE if reader.whole else _HEX_ECMA)
  if match:
    number = int(match[match.lastindex], 16)
    if number > HIGHEST:
      raise ValueError(f"\\{match[0]} is no character.")
    return ((number, number),)
  character = reader.next()
  if character in "pP":
    ranges = _category(_category_name(reader))
    return inverse(ranges) if character == "P" else ranges
  if character in "dDsSwW":
    ranges = _shorthand(character.lower(), reader.whole)
    return ranges if character.islower() else inverse(ranges)
  if character == "b" and in_class:
    return ((8, 8),)
  if character == "c":
    return ((ord(reader.next()) % 32,) * 2,)
  if character in _CONTROLS:
    return ((_CONTROLS[character],) * 2,)
  if character in "123456789k" and reader.whole:
    raise ValueError("look-around and back references are not supported.")
  if character.isalnum() or character == "_":
    raise ValueError(f"\\{character} is not supported.")
  return (_one(character),)


def _shorthand(letter, of_unicode):
  """Returns the ranges of `\\d`, `\\s` or `\\w`."""
  if not of_unicode:
    return {"d": _DIGITS, "w": _WORDS, "s": _BLANKS}[letter]
  return {"d": lambda: _categories(("Nd",)), "s": lambda: _WHITE_SPACE,
          "w": lambda: (*_categories(_WORD_CATEGORIES), *_OTHER_WORDS)
          }[letter]()


def _class(reader):
  """Returns the ranges of a class, after its bracket."""
  negated, ranges = reader.take("^"), []
  if reader.whole and reader.take("]"):
    ranges.append(_one("]"))
  while not reader.take("]"):
    low = _member(reader)
    if reader.pattern.startswith("-", reader.position) and not (
        reader.pattern.startswith("-]", reader.position)):
      reader.next()
      high = _member(reader)
      if len(low) == len(high) == 1 and low[0][0] == low[0][1] and (
          high[0][0] == high[0][1]):
        if high[0][0] < low[0][0]:
          raise ValueError("a range of a class is out of order.")
        ranges.append((low[0][0], high[0][0]))
      else:  # As in [\w-.]: three members.
        ranges += [*low, (45, 45), *high]
    else:
      ranges += low
  ranges = _any_case(reader, tuple(ranges))
  return inverse(ranges) if negated else ranges


def _member(reader):
  named = reader.match(_POSIX_CLASS) if reader.whole else None
  if named and named[2] in _POSIX:
    ranges = _class(_Reader(f"{_POSIX[named[2]]}]", whole=False))
    return inverse(ranges) if named[1] else ranges
  character = reader.next()
  if reader.whole and (character == "[" or character in "&-~" and
                       reader.pattern.startswith(character, reader.position)):
    raise ValueError("classes within classes and && of them are not supported; "
                     f"a character is written \\{character}.")
  return _escape(reader, True) if character == "\\" else (_one(character),)


def _any_case(reader, ranges):
  """Returns the ranges with letters of the other case, where that is set."""
  return _both_cases(ranges) if "i" in reader.flags else ranges


@functools.lru_cache(maxsize=256)
def _both_cases(ranges):
  return (*ranges, *(_one(other) for x, other in _cases()
                     if any(low <= x <= high for low, high in ranges)))


@functools.cache
def _cases():
  """Returns letters, by their numbers, with the same ones in another case."""
  return tuple((number, other) for number in range(_CASED)
               for other in {chr(number).lower(), chr(number).upper()}
               if len(other) == 1 and other != chr(number))


def inverse(ranges):
  """Returns the ranges of all other characters."""
  others, next_low = [], 0
  for low, high in sorted(ranges):
    if next_low < low:
      others.append((next_low, low - 1))
    next_low = max(next_low, high + 1)
  if next_low <= HIGHEST:
    others.append((next_low, HIGHEST))
  return tuple(others)


def _category_name(reader):
  """Returns what comes after `\\p`, in braces or a single letter."""
  name = reader.match(re.compile(r"\{([^}]*)\}"))
  return name[1] if name else reader.next() if reader.whole else ""


def _category(name):
  """Returns the ranges of a general category of Unicode, such as "Lu", "L"."""
  short = {"Letter": "L", "Mark": "M", "Number": "N", "Punctuation": "P",
           "Symbol": "S", "Separator": "Z"}.get(name, name)
  ranges = _categories((short,)) if 1 <= len(short) <= 2 else ()
  if not ranges:
    raise ValueError(f"\\p{{{name}}} is not supported; general categories of "
                     "Unicode are.")
  return ranges


@functools.lru_cache(maxsize=64)
def _categories(names):
  """Returns the ranges of characters of general categories of Unicode."""
  ranges = []
  for number in range(HIGHEST + 1):
    if unicodedata.category(chr(number)).startswith(names):
      if ranges and ranges[-1][1] == number - 1:
        ranges[-1] = ranges[-1][0], number
      else:
        ranges.append((number, number))
  return tuple(ranges)
