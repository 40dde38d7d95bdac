"""Regular expressions as automata over characters."""

import functools

from decoding_jax.grammars import finite_automata, regex_syntax
from decoding_jax.grammars.finite_automata import Dfa, Nfa
from decoding_jax.grammars.regex_syntax import (Ahead, BEGIN, Choice, END,
                                                HIGHEST, Sequence, Set)

# States of the automaton of a pattern that is searched for, and characters of
# it with repetitions written out.
MAX_STATES, MAX_PARTS = 2_000, 20_000
# The same of one that is matched from end to end, a whole text; its states are
# at most `finite_automata.MAX_STATES`.
MAX_WHOLE_PARTS = 100_000
# Arcs and states that are looked at, a few seconds.
MAX_STEPS = 50_000_000


def whole(pattern: str) -> Dfa:
  """Returns the automaton of texts that match from end to end."""
  nfa = Nfa(limit=MAX_WHOLE_PARTS, steps=MAX_STEPS)
  start = finite_automata.add_state(nfa)
  end = _build(nfa, regex_syntax.parse(pattern, whole=True), start)
  return finite_automata.determinise(nfa, start, {end})


@functools.lru_cache(maxsize=256)
def search(pattern: str) -> Dfa:
  """Returns the automaton of texts in which a pattern of ECMA-262 occurs.
  Look-ahead may come at the begin alone, after `^`. Raises ValueError for what
  is wrong or not supported, and TooLarge."""
  tree = regex_syntax.parse(pattern, whole=False)
  parts = tree.parts if isinstance(tree, Sequence) else (tree,)
  ahead = [x for x in parts[1:] if isinstance(x, Ahead)]
  if not ahead:
    return _search(tree)
  if parts[0] != Set(((BEGIN, BEGIN),)) or ahead != list(
      parts[1:1 + len(ahead)]):
    raise ValueError("look-ahead is supported at the begin alone, after ^.")
  dfa = _search(Sequence((parts[0], *parts[1 + len(ahead):])))
  for x in ahead:
    other = _search(Sequence((parts[0], x.part)))
    dfa = finite_automata.intersect(
        dfa, other if x.holds else finite_automata.complement(other, HIGHEST),
        MAX_STATES)
  return dfa


def _search(tree) -> Dfa:
  """Returns the automaton of texts in which a part occurs."""
  nfa = Nfa(limit=MAX_PARTS, steps=MAX_STEPS)
  start, end = finite_automata.add_state(nfa), finite_automata.add_state(nfa)
  for state in (start, end):
    nfa.moves[state].append((BEGIN, END, state))
  nfa.empty[_build(nfa, tree, start)].append(end)
  counts = _repeat_marks(nfa)
  dfa = finite_automata.determinise(nfa, start, {end}, MAX_STATES, end)

  def after(state, symbol):
    for _ in range(counts[symbol]):
      state = None if state is None else next(
          (to for low, high, to in dfa.moves[state] if low <= symbol <= high),
          None)
    return state

  first = after(0, BEGIN)
  if first is None:
    return Dfa([[]], [False])
  ends = [after(state, END) for state in range(len(dfa.moves))]
  finals = [to is not None and dfa.finals[to] for to in ends]
  moves = [[(max(low, 0), min(high, HIGHEST), to) for low, high, to in row
            if high >= 0 and low <= HIGHEST] for row in dfa.moves]
  return _from(Dfa(moves, finals), first)


def _repeat_marks(nfa):
  """Lets each anchor read a mark of its own; returns how many there are.
  Several anchors may assert one position, as in `^(^a|b)$`.
  Marks that no anchor reads are read by any state."""
  counts = {}
  for mark in (BEGIN, END):
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
  if isinstance(node, Set):
    end = finite_automata.add_state(nfa)
    nfa.moves[start] += [(low, high, end) for low, high in node.ranges]
    return end
  if isinstance(node, Sequence):
    return functools.reduce(lambda state, x: _build(nfa, x, state), node.parts,
                            start)
  if isinstance(node, Ahead):
    raise ValueError("look-ahead is supported at the begin alone, after ^.")
  end = finite_automata.add_state(nfa)
  if isinstance(node, Choice):
    for x in node.parts:
      begin = finite_automata.add_state(nfa)
      nfa.empty[start].append(begin)
      nfa.empty[_build(nfa, x, begin)].append(end)
    return end
  return _build_times(nfa, node, start, end)


def _build_times(nfa, node, start, end):
  for _ in range(node.least):
    before, start = start, _build(nfa, node.part, start)
    if start == before:
      break  # An empty part, however often it comes.
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
