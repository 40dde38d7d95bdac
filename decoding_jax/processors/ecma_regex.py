"""Patterns of JSON Schema, those of ECMA-262, as automata over characters.

A pattern is searched for anywhere in a text. The text is read between two marks
that no character is: `^` reads the one before it, `$` the one after it.
"""

import functools
import re
import unicodedata
from typing import Any, NamedTuple

from decoding_jax.processors import finite_automata
from decoding_jax.processors.finite_automata import Dfa, Nfa

HIGHEST = 0x10FFFF
# States of the automaton of a pattern, and characters of it with repetitions
# written out.
MAX_STATES, MAX_PARTS = 2_000, 20_000
_BEGIN, _END = -1, HIGHEST + 1
_DIGITS = ((48, 57),)
_WORDS = ((48, 57), (65, 90), (95, 95), (97, 122))
_BLANKS = ((9, 13), (32, 32), (0xa0, 0xa0), (0x1680, 0x1680), (0x2000, 0x200a),
           (0x2028, 0x2029), (0x202f, 0x202f), (0x205f, 0x205f),
           (0x3000, 0x3000), (0xfeff, 0xfeff))
_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_REPEAT = re.compile(r"\{(\d+)(,(\d*))?\}")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})"
                  r"|u\{([0-9a-fA-F]{1,6})\}")


class _Set(NamedTuple):
  """One character of some ranges."""
  ranges: tuple


class _All(NamedTuple):
  """Parts one after the other."""
  parts: tuple


class _Any(NamedTuple):
  """One of its parts."""
  parts: tuple


class _Times(NamedTuple):
  """A part `least` to `most` times; None for any number."""
  part: Any
  least: int
  most: int | None


class _Ahead(NamedTuple):
  """What follows begins with a part, or does not."""
  part: Any
  holds: bool


class _Reader:
  """A pattern, and the place up to which it was read."""

  def __init__(self, pattern):
    self.pattern, self.place = pattern, 0

  def take(self, text):
    """Returns whether a text comes next, and skips it."""
    found = self.pattern.startswith(text, self.place)
    self.place += len(text) * found
    return found

  def next(self):
    """Returns the next character."""
    if self.place >= len(self.pattern):
      raise ValueError("it ends too early.")
    self.place += 1
    return self.pattern[self.place - 1]

  def match(self, form):
    """Returns what a regular expression finds here, and skips it; or None."""
    found = form.match(self.pattern, self.place)
    self.place = found.end() if found else self.place
    return found


@functools.lru_cache(maxsize=256)
def search(pattern: str) -> Dfa:
  """Returns the automaton of texts in which a pattern occurs.

  Args:
    pattern: of ECMA-262; `\\d`, `\\w` stand for ASCII characters. Look-ahead
      may come at the begin alone, after `^`.

  Raises:
    ValueError: saying what is wrong, or not supported.
    finite_automata.TooLarge: beyond `MAX_STATES`.
  """
  reader = _Reader(pattern)
  tree = _alternatives(reader)
  if reader.place < len(pattern):
    raise ValueError("unbalanced ).")
  parts = tree.parts if isinstance(tree, _All) else (tree,)
  ahead = [x for x in parts[1:] if isinstance(x, _Ahead)]
  if not ahead:
    return _search(tree)
  if parts[0] != _Set(((_BEGIN, _BEGIN),)) or ahead != list(
      parts[1:1 + len(ahead)]):
    raise ValueError("look-ahead is supported at the begin alone, after ^.")
  found = _search(_All((parts[0], *parts[1 + len(ahead):])))
  for x in ahead:
    other = _search(_All((parts[0], x.part)))
    found = finite_automata.intersect(
        found, other if x.holds else finite_automata.complement(other, HIGHEST),
        MAX_STATES)
  return found


def _search(tree) -> Dfa:
  """Returns the automaton of texts in which a part occurs."""
  nfa = Nfa(limit=MAX_PARTS)
  start, end = finite_automata.add_state(nfa), finite_automata.add_state(nfa)
  for state in (start, end):
    nfa.moves[state].append((_BEGIN, _END, state))
  nfa.empty[_build(nfa, tree, start)].append(end)
  counts = _repeat_marks(nfa)
  whole = finite_automata.determinise(nfa, start, {end}, MAX_STATES, end)

  def after(state, symbol):
    for _ in range(counts[symbol]):
      state = None if state is None else next(
          (to for low, high, to in whole.moves[state] if low <= symbol <= high),
          None)
    return state

  first = after(0, _BEGIN)
  if first is None:
    return Dfa([[]], [False])
  ends = [after(state, _END) for state in range(len(whole.moves))]
  finals = [to is not None and whole.finals[to] for to in ends]
  moves = [[(max(low, 0), min(high, HIGHEST), to) for low, high, to in row
            if high >= 0 and low <= HIGHEST] for row in whole.moves]
  return _from(Dfa(moves, finals), first)


def _repeat_marks(nfa):
  """Lets each anchor read a mark of its own; returns how many there are.

  As in `^(^a|b)$`: an anchor asserts a place, and so do all that follow it
  there. Marks that no anchor reads are read by any state.
  """
  counts = {}
  for mark in (_BEGIN, _END):
    anchors = sum((mark, mark) == move[:2] for row in nfa.moves for move in row)
    counts[mark] = max(anchors, 1)
    if anchors > 1:
      for state, row in enumerate(nfa.moves):
        row.append((mark, mark, state))
  return counts


def _from(x, first):
  """Returns an automaton whose first state is another one."""
  order = [first, *(state for state in range(len(x.moves)) if state != first)]
  numbers = {state: i for i, state in enumerate(order)}
  moved = Dfa([[(low, high, numbers[to]) for low, high, to in x.moves[state]]
               for state in order], [x.finals[state] for state in order])
  everything = Dfa([[(0, HIGHEST, 0)]], [True])
  return finite_automata.intersect(moved, everything, MAX_STATES)


def _build(nfa, node, start) -> int:
  """Returns the state after a part that begins in a state."""
  if isinstance(node, _Set):
    end = finite_automata.add_state(nfa)
    nfa.moves[start] += [(low, high, end) for low, high in node.ranges]
    return end
  if isinstance(node, _All):
    return functools.reduce(lambda state, x: _build(nfa, x, state), node.parts,
                            start)
  if isinstance(node, _Ahead):
    raise ValueError("look-ahead is supported at the begin alone, after ^.")
  end = finite_automata.add_state(nfa)
  if isinstance(node, _Any):
    for x in node.parts:
      begin = finite_automata.add_state(nfa)
      nfa.empty[start].append(begin)
      nfa.empty[_build(nfa, x, begin)].append(end)
    return end
  return _build_times(nfa, node, start, end)


def _build_times(nfa, node, start, end):
  for _ in range(node.least):
    start = _build(nfa, node.part, start)
  if node.most is None:
    loop = finite_automata.add_state(nfa)
    nfa.empty[start].append(loop)
    nfa.empty[_build(nfa, node.part, loop)].append(loop)
    nfa.empty[loop].append(end)
    return end
  for _ in range(node.most - node.least):
    nfa.empty[start].append(end)
    # A state of its own, from which no loop leads back.
    begin = finite_automata.add_state(nfa)
    nfa.empty[start].append(begin)
    start = _build(nfa, node.part, begin)
  nfa.empty[start].append(end)
  return end


def _alternatives(reader):
  parts = [_sequence(reader)]
  while reader.take("|"):
    parts.append(_sequence(reader))
  return parts[0] if len(parts) == 1 else _Any(tuple(parts))


def _sequence(reader):
  parts = []
  while reader.place < len(reader.pattern) and (
      reader.pattern[reader.place] not in "|)"):
    part = _atom(reader)
    bounds = _bounds(reader)
    if bounds and isinstance(part, _Ahead):
      raise ValueError("look-ahead cannot be repeated.")
    parts.append(_Times(part, *bounds) if bounds else part)
  return parts[0] if len(parts) == 1 else _All(tuple(parts))


def _bounds(reader):
  """Returns (least, most) of a repetition that comes next; or None."""
  simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
  found = next((x for text, x in simple.items() if reader.take(text)), None)
  if not found:
    match = reader.match(_REPEAT)
    if not match:
      return None
    least = int(match[1])
    most = (least if not match[2] else int(match[3]) if match[3] else None)
    if most is not None and most < least:
      raise ValueError(f"{match[0]}: the numbers are out of order.")
    found = least, most
  reader.take("?")  # Which match is preferred does not matter.
  return found


def _atom(reader):
  character = reader.next()
  if character == "(":
    return _group(reader)
  if character == "[":
    return _Set(_class(reader))
  if character == "\\":
    return _Set(_escape(reader))
  if character in "*+?":
    raise ValueError(f"nothing to repeat by {character}.")
  return _Set({"^": ((_BEGIN, _BEGIN),), "$": ((_END, _END),),
               ".": inverse(_LINE_ENDS)}.get(
                   character, ((ord(character),) * 2,)))


def _group(reader):
  ahead = None
  if reader.take("?"):
    if reader.take("=") or reader.take("!"):
      ahead = reader.pattern[reader.place - 1] == "="
    elif not reader.take(":"):
      name = reader.match(re.compile(r"P?<([A-Za-z_$][\w$]*)>"))
      if not name:
        raise ValueError("look-behind, flags and the like are not supported.")
  part = _alternatives(reader)
  if not reader.take(")"):
    raise ValueError("missing ).")
  return part if ahead is None else _Ahead(part, ahead)


def _escape(reader, in_class=False):
  """Returns the ranges of what comes after a backslash."""
  found = reader.match(_HEX)
  if found:
    number = int(found[1] or found[2] or found[3], 16)
    if number > HIGHEST:
      raise ValueError(f"\\{found[0]} is no character.")
    return ((number, number),)
  character = reader.next()
  if character in "pP":
    name = reader.match(re.compile(r"\{([^}]*)\}"))
    ranges = _category(name[1] if name else "")
    return inverse(ranges) if character == "P" else ranges
  kind = {"d": _DIGITS, "w": _WORDS, "s": _BLANKS}.get(character.lower())
  if kind:
    return kind if character.islower() else inverse(kind)
  if character == "b" and in_class:
    return ((8, 8),)
  if character == "c":
    return ((ord(reader.next()) % 32,) * 2,)
  if character in _CONTROLS:
    return ((_CONTROLS[character],) * 2,)
  if character.isalnum() or character == "_":
    raise ValueError(f"\\{character} is not supported.")
  return ((ord(character),) * 2,)


def _class(reader):
  """Returns the ranges of a class, after its bracket."""
  negated, ranges = reader.take("^"), []
  while not reader.take("]"):
    low = _member(reader)
    if reader.pattern.startswith("-", reader.place) and not (
        reader.pattern.startswith("-]", reader.place)):
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
  return inverse(ranges) if negated else tuple(ranges)


def _member(reader):
  character = reader.next()
  return (_escape(reader, True) if character == "\\" else
          ((ord(character),) * 2,))


def inverse(ranges):
  """Returns the ranges of all other characters."""
  found, place = [], 0
  for low, high in sorted(ranges):
    if place < low:
      found.append((place, low - 1))
    place = max(place, high + 1)
  if place <= HIGHEST:
    found.append((place, HIGHEST))
  return tuple(found)


@functools.lru_cache(maxsize=64)
def _category(name):
  """Returns the ranges of a general category of Unicode, such as "Lu", "L"."""
  name = {"Letter": "L", "Number": "N", "Punctuation": "P"}.get(name, name)
  ranges = []
  for number in range(HIGHEST + 1 if 1 <= len(name) <= 2 else 0):
    if unicodedata.category(chr(number)).startswith(name):
      if ranges and ranges[-1][1] == number - 1:
        ranges[-1] = ranges[-1][0], number
      else:
        ranges.append((number, number))
  if not ranges:
    raise ValueError(f"\\p{{{name}}} is not supported; general categories of "
                     "Unicode are.")
  return tuple(ranges)
