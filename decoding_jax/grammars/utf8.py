"""UTF-8: ranges of characters as ranges of bytes."""

import dataclasses
import functools

from decoding_jax.grammars import finite_automata
from decoding_jax.grammars.finite_automata import Dfa, Nfa

HIGHEST = 0x10FFFF
# Halves of pairs, which are no characters.
SURROGATES = (0xd800, 0xdfff)
# Least and largest characters of one to four bytes.
_SIZES = ((0, 0x7f), (0x80, 0x7ff), (0x800, 0xffff), (0x10000, 0x10ffff))


@dataclasses.dataclass
class Target:
  """A state, and the sequences of ranges of bytes to it, each made once."""
  nfa: Nfa
  end: int
  tails: dict = dataclasses.field(default_factory=dict)


def of_characters(texts: Dfa) -> Dfa:
  """Returns the automaton over bytes of an automaton over characters."""
  nfa = Nfa()
  states = [finite_automata.add_state(nfa) for _ in texts.moves]
  targets = [Target(nfa, state) for state in states]
  for here, row in zip(states, texts.moves):
    for low, high, to in row:
      add_characters(targets[to], here, low, high)
  return finite_automata.determinise(nfa, states[0], {
      state for state, final in zip(states, texts.finals) if final})


def add_characters(target: Target, start: int, low: int, high: int):
  """Adds arcs for the characters of a range from a state to the target."""
  for first, last in ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, HIGHEST)):
    for ranges in byte_ranges(max(low, first), min(high, last)):
      add_ranges(target, start, ranges)


def add_ranges(target: Target, start: int, ranges):
  """Adds a sequence of ranges of bytes from a state to the target."""
  (low, high), rest = ranges[0], ranges[1:]
  target.nfa.moves[start].append((low, high, _tail(target, rest)))


def _tail(target, ranges):
  """Returns the state from which a sequence of ranges leads to the target."""
  if not ranges:
    return target.end
  state = target.tails.get(ranges)
  if state is None:
    state = target.tails[ranges] = finite_automata.add_state(target.nfa)
    add_ranges(target, state, ranges)
  return state


@functools.lru_cache(maxsize=4096)
def byte_ranges(low: int, high: int) -> tuple:
  """Returns sequences of (lowest, highest byte), without surrogates."""
  sequences = []
  for first, last in _SIZES:
    a, b = max(low, first), min(high, last)
    if a <= b:
      sequences += _byte_ranges(tuple(chr(a).encode()), tuple(chr(b).encode()))
  return tuple(sequences)


def _byte_ranges(a, b):
  """Returns the sequences from `a` to `b`, of bytes that continue 0x80-0xbf."""
  if len(a) == 1:
    return [((a[0], b[0]),)]
  lowest, highest = (0x80,) * (len(a) - 1), (0xbf,) * (len(a) - 1)
  if a[0] == b[0]:
    return [((a[0], a[0]), *rest) for rest in _byte_ranges(a[1:], b[1:])]
  sequences, first, last = [], a[0], b[0]
  if a[1:] != lowest:
    sequences += [((first, first), *rest)
                  for rest in _byte_ranges(a[1:], highest)]
    first += 1
  tail = []
  if b[1:] != highest:
    tail = [((last, last), *rest) for rest in _byte_ranges(lowest, b[1:])]
    last -= 1
  if first <= last:
    sequences.append(((first, last), *((0x80, 0xbf),) * (len(a) - 1)))
  return sequences + tail
