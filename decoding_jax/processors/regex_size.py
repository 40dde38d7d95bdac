"""How large the automaton of a pattern becomes, before it is built.

The compiler of `outlines_core` cannot be stopped, and there are short patterns
whose automata have more states than a machine has bytes: `(a|b)*a(a|b){40}`.
So the states are counted beforehand, by the positions automaton (Glushkov
1961) and its subsets, and counting stops at the limit. It is done over
characters; the further states within characters of several bytes are estimated.
"""

import dataclasses
import functools
import re
from typing import NamedTuple, Sequence

import numpy as np

from decoding_jax.processors import regex_syntax
from decoding_jax.processors.token_automaton import MAX_BYTES, MAX_STATES

# Characters of a pattern with its repetitions written out.
MAX_LENGTH = 20_000
# Steps of the count; two seconds.
MAX_STEPS = 1_000_000
# Bytes of a transition by a token while an automaton is compiled, as measured.
_TRANSITION_BYTES = 128
_ASCII, _BYTES = 128, 256
# What is not ASCII is represented by some letters, digits, signs and blanks.
_OTHERS = "éДѪ中²٣—\u3000\u2028\U0001f600"
_ALPHABET = [*map(chr, range(_ASCII)), *_OTHERS]
# States within the bytes of a character of such a class, as measured.
_INNER = ((re.compile(r"\\[wWpP]"), 320), (re.compile(r"\\[dD]"), 24),
          (re.compile(r"\\[sS]"), 10), (re.compile(""), 8))
_POSIX = {"alnum": "0-9A-Za-z", "alpha": "A-Za-z", "ascii": r"\x00-\x7f",
          "blank": r"\t ", "cntrl": r"\x00-\x1f\x7f", "digit": "0-9",
          "graph": "!-~", "lower": "a-z", "print": " -~",
          "punct": r"!-/:-@\[-`{-~", "space": r"\t\n\v\f\r ",
          "upper": "A-Z", "word": "0-9A-Za-z_", "xdigit": "0-9A-Fa-f"}


class Size(NamedTuple):
  """Estimates: `states` of an automaton, `transitions` by tokens."""
  states: int
  transitions: int


class _Part(NamedTuple):
  """A part of a pattern; sets of positions are the bits of integers.

  Attributes:
    nullable: whether it matches the empty text.
    first: positions that can come first.
    last: positions that can come last.
  """
  nullable: bool
  first: int
  last: int


_EMPTY = _Part(True, 0, 0)
# They match no character, but places between two.
_EMPTY_ATOMS = frozenset(("", r"\b", r"\B", r"\A", r"\z"))


def check(name: str, pattern: str, pieces: Sequence[bytes]):
  """Checks that an automaton of a pattern would be of a reasonable size.

  Args:
    name: what errors begin with.
    pattern: of Rust's `regex`; one that is wrong is left to its compiler.
    pieces: the bytes of V tokens.

  Returns:
    A `Size`, or None for a pattern that is wrong.

  Raises:
    ValueError: naming the size and the limit.
  """
  try:
    node = regex_syntax.parse(pattern)
    return node and _measure(node, pieces)
  except ValueError as e:
    raise ValueError(f"{name}: {e}") from e


def length(pattern: str) -> int:
  """Returns the characters of a pattern with its repetitions written out."""
  node = regex_syntax.parse(pattern)
  return _length(node) if node else len(pattern)


def _measure(node, pieces) -> Size:
  size = _length(node)
  if size > MAX_LENGTH:
    raise ValueError(f"{min(size, 10**18)} characters with its repetitions "
                     f"written out: at most {MAX_LENGTH} are supported.")
  count = _Count()
  # The end of the text is a position as well.
  whole = _build(count, regex_syntax.Sequence(
      (node, regex_syntax.Atom(r"\x00"))))
  symbols = _symbols(count.texts)
  states, moves = _subsets(count, whole.first, symbols)
  transitions = _transitions(moves, states - len(moves), symbols, pieces)
  size = transitions * _TRANSITION_BYTES
  if size > MAX_BYTES:
    raise ValueError(
        f"an automaton of {states} states would have {transitions} transitions "
        f"by tokens, and take {size / 2**30:.1f} GiB to compile: at most "
        f"{MAX_BYTES / 2**30:.1f} GiB are allowed.")
  return Size(states, transitions)


def _length(node) -> int:
  """Returns the positions of a part with its repetitions written out."""
  if isinstance(node, regex_syntax.Atom):
    return 1
  if isinstance(node, regex_syntax.Repeat):
    times = max(node.least, 1) if node.most is None else max(node.most, 1)
    return times * _length(node.part)
  return sum(map(_length, node.parts))


@dataclasses.dataclass
class _Count:
  """Positions that were met, and steps taken.

  Attributes:
    texts: the number of each atom, in the order in which they were met.
    atoms: of each position, the number of its atom.
    following: of each position, the positions that can follow.
    steps: so far.
  """
  texts: dict[str, int] = dataclasses.field(default_factory=dict)
  atoms: list[int] = dataclasses.field(default_factory=list)
  following: list[int] = dataclasses.field(default_factory=list)
  steps: int = 0


def _step(count, number=1):
  """Raises ValueError if there are more steps than allowed."""
  count.steps += number
  if count.steps > MAX_STEPS:
    raise ValueError(f"more than {MAX_STEPS} steps to count the states of its "
                     "automaton, the limit: fewer or smaller repetitions are "
                     "needed.")


def _build(count, node) -> _Part:
  """Adds the positions of a node."""
  if isinstance(node, regex_syntax.Atom):
    return _atom(count, node.text)
  if isinstance(node, regex_syntax.Repeat):
    return _repeat(count, node)
  parts = (_build(count, part) for part in node.parts)
  if isinstance(node, regex_syntax.Sequence):
    return functools.reduce(functools.partial(_then, count), parts, _EMPTY)
  parts = list(parts)
  return _Part(any(x.nullable for x in parts), _union(x.first for x in parts),
               _union(x.last for x in parts))


def _atom(count, text):
  _step(count)
  if text in _EMPTY_ATOMS:
    return _EMPTY
  count.atoms.append(count.texts.setdefault(text, len(count.texts)))
  count.following.append(0)
  position = 1 << len(count.atoms) - 1
  return _Part(False, position, position)


def _repeat(count, node):
  whole = _EMPTY
  for _ in range(node.least - 1 if node.most is None else node.least):
    whole = _then(count, whole, _build(count, node.part))
  if node.most is None:
    last = _build(count, node.part)
    _link(count, last.last, last.first)
    return _then(count, whole, last._replace(
        nullable=last.nullable or not node.least))
  # Each of the others follows the one before, as in x(x(x)?)?.
  entry, ends, first = whole.last, whole.last, whole.first
  begins = whole.nullable
  for _ in range(node.most - node.least):
    part = _build(count, node.part)
    _link(count, entry, part.first)
    first |= part.first if begins else 0
    begins = begins and part.nullable
    entry = part.last | (entry if part.nullable else 0)
    ends |= part.last
  return _Part(whole.nullable, first, ends)


def _then(count, left, right):
  _link(count, left.last, right.first)
  return _Part(left.nullable and right.nullable,
               left.first | (right.first if left.nullable else 0),
               right.last | (left.last if right.nullable else 0))


def _link(count, before, after):
  if after:
    for position in _bits(before):
      _step(count)
      count.following[position] |= after


def _union(sets):
  whole = 0
  for x in sets:
    whole |= x
  return whole


def _bits(x):
  """Yields the numbers of the bits that are set."""
  while x:
    low = x & -x
    yield low.bit_length() - 1
    x ^= low


class _Symbols(NamedTuple):
  """Classes of characters that the atoms of a pattern do not tell apart.

  Attributes:
    members: of each class, its characters.
    of_atoms: of each atom, the numbers of the classes that it matches.
    inner: of each atom, the states within the bytes of its characters.
  """
  members: list[str]
  of_atoms: list[list[int]]
  inner: list[int]


def _symbols(texts) -> _Symbols:
  matched = np.array([[*map(_matcher(text), _ALPHABET)] for text in texts])
  kinds, index = np.unique(matched, axis=1, return_inverse=True)
  index = index.reshape(-1)
  members = ["".join(x for x, i in zip(_ALPHABET, index) if i == kind)
             for kind in range(kinds.shape[1])]
  return _Symbols(members, [np.flatnonzero(row).tolist() for row in kinds],
                  [_inner(text, row) for text, row in zip(texts, matched)])


def _inner(text, row):
  if not row[_ASCII:].any() and text.isascii():
    return 0
  return next(count for form, count in _INNER if form.search(text))


def _matcher(text):
  """Returns a function that tells whether an atom matches a character."""
  if len(text) == 1 and text != ".":
    return lambda x: x == text
  text = re.sub(r"\[:(\^?)(\w+):\]", lambda x: _POSIX.get(
      x[2], "") if not x[1] else "", text)
  text = re.sub(r"\\[xuU]\{([0-9a-fA-F]{1,6})\}",
                lambda x: f"\\U{int(x[1], 16):08x}", text)
  try:
    form = regex_syntax.as_python(text)
  except (re.error, OverflowError):
    return lambda x: True  # A class that Python does not know: any character.
  return lambda x: bool(form.fullmatch(x))


def _subsets(count, first, symbols):
  """Counts the states of the deterministic automaton, those in bytes included.

  Returns:
    How many there are; and of each of those between characters, the state
    after each class of characters, `[Q, C]` int32, -1 for none.
  """
  numbers, waiting, rows = {first: 0}, [first], []
  total, width = 0, len(symbols.members)
  for subset in waiting:
    after, inner = {}, 0
    for position in _bits(subset):
      atom = count.atoms[position]
      after[atom] = after.get(atom, 0) | count.following[position]
      _step(count)
      inner = max(inner, symbols.inner[atom])
    total += 1 + inner
    if total > MAX_STATES:
      raise ValueError(f"an automaton of more than {MAX_STATES} states, the "
                       "limit.")
    moves = {}
    for atom, found in after.items():
      _step(count, len(symbols.of_atoms[atom]))
      for symbol in symbols.of_atoms[atom]:
        moves[symbol] = moves.get(symbol, 0) | found
    row = np.full(width, -1, np.int32)
    for symbol, found in moves.items():
      row[symbol] = numbers.setdefault(found, len(numbers))
      if row[symbol] == len(waiting):
        waiting.append(found)
    rows.append(row)
  return total, np.stack(rows)


def _transitions(moves, inner, symbols, pieces) -> int:
  """Returns how many tokens the states allow, by their first two bytes.

  Args:
    moves: of `_subsets`.
    inner: states within the bytes of characters.
    symbols: of the pattern.
    pieces: the bytes of V tokens.
  """
  pairs = np.zeros((_BYTES, _BYTES + 1))
  for piece in pieces:
    if piece:
      pairs[piece[0], piece[1] if len(piece) > 1 else _BYTES] += 1
  of_symbols = np.stack([_by_second(pairs, x) for x in symbols.members])
  allowed = np.zeros((len(moves), _BYTES + 1))
  for symbol, characters in enumerate(symbols.members):
    can = moves[:, symbol] >= 0
    for x in characters:
      allowed[can, ord(x) if ord(x) < _ASCII else slice(_ASCII, _BYTES)] = 1
  # Any of the bytes that continue a character; few of them allow all.
  total = inner * pairs[_ASCII:_ASCII + 64].sum()
  for symbol, row in enumerate(of_symbols):
    after = moves[:, symbol]
    after = after[after >= 0]
    total += len(after) * row[_BYTES] + (allowed[after] @ row).sum()
    if any(ord(x) >= _ASCII for x in symbols.members[symbol]):
      # Their second bytes are parts of the same character.
      total += len(after) * pairs[_ASCII:].sum()
  return int(total)


def _by_second(pairs, characters):
  """Returns how many tokens begin with ASCII characters, by second byte."""
  return pairs[[ord(x) for x in characters if ord(x) < _ASCII]].sum(axis=0)
