"""The structure of a pattern of Rust's `regex`: atoms, groups, repetitions."""

import re
import warnings
from typing import NamedTuple, Optional

# `regex` itself nests no deeper than 250.
MAX_DEPTH = 200
_ESCAPE = re.compile(
    r"\\(?:[xuUpP]\{[^}]*\}|[pP][A-Za-z]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}"
    r"|U[0-9a-fA-F]{8}|.)",
    re.DOTALL)
_OPEN = re.compile(r"\((?:\?P?<[^=!>][^>]*>|\?<?[=!]|\?P=|\?[a-zA-Z-]*:)?")
_FLAGS = re.compile(r"\(\?[a-zA-Z-]+\)")
_FLAGS_SET = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]*))?[:)]")
_REPEAT = re.compile(r"(?:[*+?]|\{ *[0-9]+ *(?:, *[0-9]*)? *\})\??")


class Token(NamedTuple):
  """Attributes: `kind`, one of the names below, and the `text`."""
  kind: str
  text: str


ATOM, OPEN, CLOSE, OR, REPEAT, FLAGS = (
    "atom", "open", "close", "or", "repeat", "flags")


class Atom(NamedTuple):
  """One character: itself, an escape, a class; "" matches no character."""
  text: str


class Sequence(NamedTuple):
  """Its parts, one after the other."""
  parts: tuple


class Choice(NamedTuple):
  """One of its parts."""
  parts: tuple


class Repeat(NamedTuple):
  """A part `least` to `most` times; None for any number."""
  part: "Atom | Sequence | Choice | Repeat"
  least: int
  most: Optional[int]


def tokens(pattern: str):
  """Yields the `Token`s of a pattern, in time proportional to its length."""
  place = 0
  while place < len(pattern):
    token = _token(pattern, place)
    yield token
    place += len(token.text)


def parse(pattern: str):
  """Returns the structure of a pattern; None if its groups do not match up.

  What a repetition repeats is kept once, however often that is.

  Args:
    pattern: of Rust's `regex`.

  Raises:
    ValueError: if it is nested deeper than `MAX_DEPTH`.
  """
  groups = [[[]]]  # Alternatives of each open group, with the depth of parts.
  for kind, text in tokens(pattern):
    if kind == OPEN:
      groups.append([[]])
    elif kind == OR:
      groups[-1].append([])
    elif kind == CLOSE:
      if len(groups) == 1:
        return None
      inner = _choice(groups.pop())
      groups[-1][-1].append(inner)
    elif kind == REPEAT:
      if not groups[-1][-1]:
        return None
      part, depth = groups[-1][-1].pop()
      groups[-1][-1].append((Repeat(part, *_bounds(text)), depth + 1))
    elif kind == ATOM:
      groups[-1][-1].append((Atom(text), 0))
    _check_depth(len(groups), groups[-1][-1][-1:])
  return _choice(groups.pop())[0] if len(groups) == 1 else None


def without_nul(pattern: str) -> str:
  """Returns a pattern whose classes do not contain the character 0.

  Written out where 0 stands for itself alone, it stays.
  """
  dot_all, texts = [False], []
  for kind, text in tokens(pattern):
    if kind == OPEN:
      dot_all.append(dot_all[-1])
    elif kind == CLOSE and len(dot_all) > 1:
      dot_all.pop()
    flags = kind in (OPEN, FLAGS) and _FLAGS_SET.match(text)
    if flags:
      if "x" in flags[1]:
        return pattern  # With comments, it is not read as it is here.
      if "s" in flags[1] + (flags[2] or ""):
        dot_all[-1] = "s" in flags[1]
    if kind == ATOM:
      text = _without_nul(text, dot_all[-1])
    texts.append(text)
  return "".join(texts)


def _without_nul(atom, dot_all):
  if atom == ".":
    return r"[^\x00]" if dot_all else r"[^\n\x00]"
  # Other classes do not contain it.
  wide = (len(atom) > 2 and atom[0] == "[" and atom[-1] == "]" and
          re.search(r"[\^\\]", atom) or re.match(r"\\[WDSpP]", atom))
  return rf"[{atom}&&[^\x00]]" if wide else atom


def as_python(pattern: str) -> re.Pattern:
  """Compiles a pattern by `re`, which is mostly the same language.

  Raises:
    re.error: where it is not.
  """
  with warnings.catch_warnings():
    # What Python may read otherwise in future.
    warnings.simplefilter("ignore", FutureWarning)
    return re.compile(pattern)


def _token(pattern, place) -> Token:
  first = pattern[place]
  if first == "[":
    return Token(ATOM, pattern[place:_class_end(pattern, place)])
  for kind, form in ((ATOM, _ESCAPE), (FLAGS, _FLAGS), (OPEN, _OPEN),
                     (REPEAT, _REPEAT)):
    found = form.match(pattern, place)
    if found:
      return Token(kind, found[0])
  return Token({")": CLOSE, "|": OR}.get(first, ATOM), first)


def _class_end(pattern, place):
  """The place after a class such as "[^]a-z[:digit:]]"."""
  depth, start = 0, place
  while place < len(pattern):
    if pattern[place] == "\\":
      place += 1
    elif pattern[place] == "[":
      depth += 1
      # A bracket that comes first is one of the characters.
      place += pattern.startswith("^", place + 1)
      place += pattern.startswith("]", place + 1)
    elif pattern[place] == "]":
      depth -= 1
    place += 1
    if not depth:
      return place
  return max(len(pattern), start + 1)


def _bounds(text):
  """(least, most) of "*", "{2,3}" and the like."""
  simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
  if text[0] in simple:
    return simple[text[0]]
  low, comma, high = text[1:text.index("}")].partition(",")
  return _integer(low), (_integer(high) if high.strip() else
                         None if comma else _integer(low))


def _integer(text):
  """A number of any length, cut where it is too large for anything."""
  return int(text.strip()[:18])


def _choice(alternatives):
  """The node of a group, and its depth."""
  parts = []
  depth = 0
  for found in alternatives:
    nodes = tuple(node for node, _ in found) or (Atom(""),)
    depth = max(depth, *(inner for _, inner in found), 0)
    parts.append(nodes[0] if len(nodes) == 1 else Sequence(nodes))
  return (parts[0] if len(parts) == 1 else Choice(tuple(parts))), depth + 1


def _check_depth(open_groups, last):
  depth = max([open_groups, *(depth for _, depth in last)])
  if depth > MAX_DEPTH:
    raise ValueError(f"groups and repetitions nested {depth} deep: at most "
                     f"{MAX_DEPTH} are supported.")
