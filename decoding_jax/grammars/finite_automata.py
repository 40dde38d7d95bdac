"""Finite automata over integers: bytes, or characters by their numbers.

Their arcs are ranges of symbols, so that "any character" is one arc.
"""

import dataclasses
import time
from typing import NamedTuple

import numpy as np

# States of a deterministic automaton, unless another limit is given.
MAX_STATES = 20_000
# Subsets between two looks at the clock.
_PATIENCE = 256
# Times that a closure takes longer to find than to use again.
_FIRST_TIME = 50


class TooLarge(ValueError):
  """An automaton of more states than allowed, or one that takes too long."""


@dataclasses.dataclass
class Nfa:
  """A nondeterministic automaton under construction."""
  # Of each state, arcs (lowest symbol, highest symbol, state).
  moves: list[list[tuple[int, int, int]]] = dataclasses.field(
      default_factory=list)
  # Of each state, states that are reached without a symbol.
  empty: list[list[int]] = dataclasses.field(default_factory=list)
  limit: int = 500_000  # most states
  # Most arcs and states that are looked at to make it deterministic.
  steps: float = float("inf")
  # Of `time.monotonic`, after which construction is given up.
  deadline: float = float("inf")


class Dfa(NamedTuple):
  """A deterministic automaton; state 0 is the first one."""
  # Of each state, disjoint arcs (lowest symbol, highest, state), in order.
  moves: list[list[tuple[int, int, int]]]
  finals: list[bool]  # of each state, whether a text may end there


def add_state(nfa: Nfa) -> int:
  """Returns a new state; raises TooLarge beyond the limit or deadline."""
  nfa.moves.append([])
  nfa.empty.append([])
  size = len(nfa.moves)
  if size > nfa.limit:
    raise TooLarge(f"more than {nfa.limit} parts to put together, the limit.")
  if size % 1024 == 0:
    _check_time(nfa)
  return size - 1


def add_text(nfa: Nfa, start: int, text) -> int:
  """Returns the state after a text, symbols that begin in a state."""
  for symbol in text:
    state = add_state(nfa)
    nfa.moves[start].append((symbol, symbol, state))
    start = state
  return start


def add_dfa(nfa: Nfa, start: int, dfa: Dfa) -> int | None:
  """Adds the texts of an automaton; returns the state after, None if empty."""
  if is_empty(dfa):
    return None
  end = add_state(nfa)
  states = [start, *(add_state(nfa) for _ in dfa.moves[1:])]
  if any(to == 0 for row in dfa.moves for _, _, to in row):
    # A state of its own: other texts begin in `start`, which nothing leads to.
    states[0] = add_state(nfa)
    nfa.empty[start].append(states[0])
  for here, row, final in zip(states, dfa.moves, dfa.finals):
    nfa.moves[here] += [(low, high, states[to]) for low, high, to in row]
    nfa.empty[here] += [end] if final else []
  return end


def determinise(nfa: Nfa, start: int, finals, limit: int = MAX_STATES,
                absorbing: int | None = None) -> Dfa:
  """Returns the deterministic automaton, by the subsets of states. States from
  which no text ends are left out. After the state `absorbing` any text may
  follow. Raises TooLarge beyond `limit` states."""
  closures: dict[int, frozenset] = {}
  steps = 0

  def subset(states):
    nonlocal steps
    parts = []
    for x in states:
      factor = 1 if x in closures else _FIRST_TIME
      parts.append(_closure(nfa, closures, x))
      steps += factor * len(parts[-1])
      if steps > nfa.steps:
        raise TooLarge(f"more than {nfa.steps} steps to put together, the "
                       "limit: fewer or smaller repetitions are needed.")
    states = frozenset().union(*parts)
    return frozenset((absorbing,)) if absorbing in states else states

  first = subset((start,))
  numbers, waiting, moves = {first: 0}, [first], []
  known: dict[frozenset, int] = {}
  for states in waiting:
    if len(moves) % _PATIENCE == 0:
      _check_time(nfa)
    row = []
    arcs = [arc for x in states for arc in nfa.moves[x]]
    steps += len(arcs)
    for low, high, targets in _segments(arcs):
      number = known.get(targets)
      if number is None:
        after = subset(targets)
        number = known[targets] = numbers.setdefault(after, len(numbers))
        if number == len(waiting):
          _wait(waiting, after, limit)
      _append(row, low, high, number)
    moves.append(row)
  finals = frozenset(finals)
  return _live(Dfa(moves, [not finals.isdisjoint(x) for x in waiting]))


def _wait(waiting, state, limit):
  """Appends a state that still waits for its moves."""
  waiting.append(state)
  if len(waiting) > limit:
    raise TooLarge(f"an automaton of more than {limit} states, the limit.")


def intersect(x: Dfa, y: Dfa, limit: int = MAX_STATES) -> Dfa:
  """Returns the automaton of the texts of both."""
  numbers, waiting, moves = {(0, 0): 0}, [(0, 0)], []
  for a, b in waiting:
    row = []
    i = j = 0
    left, right = x.moves[a], y.moves[b]
    while i < len(left) and j < len(right):
      low, high = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
      if low <= high:
        pair = left[i][2], right[j][2]
        number = numbers.setdefault(pair, len(numbers))
        if number == len(waiting):
          _wait(waiting, pair, limit)
        _append(row, low, high, number)
      if left[i][1] < right[j][1]:
        i += 1
      else:
        j += 1
    moves.append(row)
  return _live(Dfa(moves, [x.finals[a] and y.finals[b] for a, b in waiting]))


def complement(x: Dfa, highest: int) -> Dfa:
  """Returns the automaton of all other texts of the symbols 0 to `highest`."""
  sink = len(x.moves)
  moves = []
  for row in [*x.moves, []]:
    full, next_low = [], 0
    for low, high, to in row:
      if next_low < low:
        full.append((next_low, low - 1, sink))
      full.append((low, high, to))
      next_low = high + 1
    if next_low <= highest:
      full.append((next_low, highest, sink))
    moves.append(full)
  return _live(Dfa(moves, [not final for final in x.finals] + [True]))


def table(x: Dfa, size: int):
  """Returns `[Q, size]` int32, states after the symbols below; -1 for none."""
  rows = np.full((len(x.moves), size), -1, np.int32)
  for row, arcs in zip(rows, x.moves):
    for low, high, to in arcs:
      row[low:high + 1] = to
  return rows


def is_empty(x: Dfa) -> bool:
  """Returns whether an automaton has no text."""
  return not any(x.finals)


def accepts(x: Dfa, symbols) -> bool:
  """Returns whether an automaton has a text."""
  state = 0
  for symbol in symbols:
    for low, high, to in x.moves[state]:
      if low <= symbol <= high:
        state = to
        break
    else:
      return False
  return x.finals[state]


def _check_time(nfa):
  if time.monotonic() > nfa.deadline:
    raise TooLarge("it takes longer than allowed.")


def _closure(nfa, closures, state):
  """Returns the states that are reached without a symbol, itself included."""
  closure = closures.get(state)
  if closure is None:
    seen, waiting = {state}, [state]
    for x in waiting:
      for to in nfa.empty[x]:
        if to not in seen:
          seen.add(to)
          waiting.append(to)
    # States with nothing but empty moves would tell equal subsets apart.
    closure = closures[state] = frozenset(
        x for x in seen if nfa.moves[x] or not nfa.empty[x])
  return closure


def _segments(arcs):
  """Yields (low, high, frozenset of states) of overlapping arcs, in order."""
  if len(arcs) == 1:
    [(low, high, to)] = arcs
    yield low, high, frozenset((to,))
    return
  events: dict[int, tuple[list, list]] = {}
  for low, high, to in arcs:
    events.setdefault(low, ([], []))[0].append(to)
    events.setdefault(high + 1, ([], []))[1].append(to)
  open_arcs: dict[int, int] = {}
  before = None
  for symbol in sorted(events):
    if open_arcs:
      yield before, symbol - 1, frozenset(open_arcs)
    begin, end = events[symbol]
    for to in begin:
      open_arcs[to] = open_arcs.get(to, 0) + 1
    for to in end:
      open_arcs[to] -= 1
      if not open_arcs[to]:
        del open_arcs[to]
    before = symbol


def _append(row, low, high, to):
  """Adds an arc, to the last one where that goes on."""
  if row and row[-1][1] == low - 1 and row[-1][2] == to:
    row[-1] = row[-1][0], high, to
  else:
    row.append((low, high, to))


def _live(x: Dfa) -> Dfa:
  """Returns an automaton without states from which no text ends."""
  before: list[list[int]] = [[] for _ in x.moves]
  for state, row in enumerate(x.moves):
    for _, _, to in row:
      before[to].append(state)
  live = list(x.finals)
  waiting = [state for state, final in enumerate(live) if final]
  for state in waiting:
    for other in before[state]:
      if not live[other]:
        live[other] = True
        waiting.append(other)
  kept = [0, *(state for state in range(1, len(live)) if live[state])]
  numbers = {state: i for i, state in enumerate(kept)}
  return Dfa([[(low, high, numbers[to]) for low, high, to in x.moves[state]
               if live[to]] for state in kept],
             [x.finals[state] for state in kept])
