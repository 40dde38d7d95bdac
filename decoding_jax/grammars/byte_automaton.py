"""Automata over bytes as automata over the tokens of a vocabulary.

All states read the vocabulary at once, level by level of the trie of its
tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from decoding_jax.grammars import (finite_automata, token_automaton,
                                   vocabulary_digest)
from decoding_jax.grammars.finite_automata import Dfa, TooLarge
from decoding_jax.grammars.token_automaton import Automaton
from decoding_jax.types import NONE

# Transitions by tokens of an automaton, about 12 bytes each.
MAX_TRANSITIONS = 100_000_000
_BYTES = 256
# States that read the vocabulary together.
_CHUNK = 64
_TRIES: dict = {}


class _Level(NamedTuple):
  """Beginnings of tokens of one length."""
  # Of each beginning of the level before, and one more, where its children are
  # in what follows.
  starts: np.ndarray
  byte: np.ndarray  # of each child, the last byte
  token_starts: np.ndarray  # of each child, and one more, where its tokens are
  tokens: np.ndarray  # that are as long as the level is deep


def of_dfa(name: str, dfa: Dfa, pieces: Sequence[bytes], eos_id) -> Automaton:
  """Returns the automaton over tokens of one over bytes, or TooLarge."""
  token_automaton.check_pieces(pieces)
  ends = token_automaton.end_tokens(eos_id, len(pieces))
  table = finite_automata.table(dfa, _BYTES)
  levels = vocabulary_digest.cached(_TRIES, 1, _levels, pieces, ends)
  arcs, count = {}, 0
  for states in _alike(table):
    inside, exits = _of_loops(levels, table[states[0]] == states[0])
    for first in range(0, len(states), _CHUNK):
      chunk = states[first:first + _CHUNK]
      moves = _read(levels, table, chunk, exits)
      count += len(moves[0]) + len(inside) * len(chunk)
      if count > MAX_TRANSITIONS:
        raise TooLarge(f"{name}: more than {MAX_TRANSITIONS} transitions by "
                       "tokens, the limit.")
      arcs.update(_by_state(chunk, inside, *moves))
  finals = [state for state, final in enumerate(dfa.finals) if final]
  try:
    return token_automaton.from_arcs(arcs, 0, finals, len(pieces), ends)
  except token_automaton.NoText as e:
    raise ValueError(f"{name}: {e}") from e
  except ValueError as e:
    raise TooLarge(f"{name}: {e}") from e


def _alike(table):
  """Yields states that the same bytes do not leave, in ascending order."""
  loops = table == np.arange(len(table), dtype=np.int32)[:, None]
  _, groups = np.unique(np.packbits(loops, axis=1), axis=0, return_inverse=True)
  groups = groups.reshape(-1)
  for group in range(groups.max() + 1):
    yield np.flatnonzero(groups == group).astype(np.int32)


def _of_loops(levels, loops):
  """Returns the moves that states have in common by `loops [256]`. These bytes
  do not leave a state: tokens of these bytes alone; and of each level the
  beginnings of which the last byte is the first other one."""
  stays, inside, exits = np.ones(1, bool), [], []
  for level in levels:
    parents = np.repeat(np.arange(len(stays)), np.diff(level.starts))
    stay = stays[parents] & loops[level.byte]
    exits.append(np.flatnonzero(stays[parents] & ~stay))
    tokens = np.repeat(stay, np.diff(level.token_starts))
    inside.append(level.tokens[tokens])
    stays = stay
  return np.concatenate(inside), exits


def _read(levels, table, states, exits):
  """Returns (state, token, state after it) of tokens that leave the states."""
  moves = []
  begin = here = np.zeros(0, np.int32)
  node = np.zeros(0, np.int64)
  for level, more in zip(levels, exits):
    counts = level.starts[node + 1] - level.starts[node]
    child = np.concatenate([_ranges(level.starts[node], counts),
                            np.tile(more, len(states))])
    first = np.repeat(states, len(more))
    begin = np.concatenate([np.repeat(begin, counts), first])
    before = np.concatenate([np.repeat(here, counts), first])
    here = table[before, level.byte[child]]
    kept = here != NONE
    begin, here, node = begin[kept], here[kept], child[kept]
    counts = level.token_starts[node + 1] - level.token_starts[node]
    tokens = level.tokens[_ranges(level.token_starts[node], counts)]
    moves.append((np.repeat(begin, counts), tokens, np.repeat(here, counts)))
  return tuple(map(np.concatenate, zip(*moves)))


def _by_state(states, inside, begin, tokens, after):
  """Yields each state, ascending, with its (tokens, states after them)."""
  # Small numbers are sorted several times as fast.
  index = np.searchsorted(states, begin).astype(np.uint8)
  order = np.argsort(index, kind="stable")
  tokens, after = tokens[order], after[order]
  bounds = np.searchsorted(index[order], np.arange(len(states) + 1))
  for state, low, high in zip(states.tolist(), bounds, bounds[1:]):
    yield state, (np.concatenate([inside, tokens[low:high]]),
                  np.concatenate([np.full(len(inside), state, np.int32),
                                  after[low:high]]))


def _ranges(starts, counts):
  """Returns the integers `start ... start + count - 1` of each pair."""
  before = np.cumsum(counts) - counts
  return np.arange(counts.sum()) + np.repeat(starts - before, counts)


def _levels(pieces, ends):
  """Returns the levels of the trie of a vocabulary."""
  text = np.frombuffer(b"".join(pieces), np.uint8)
  lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
  starts = np.cumsum(lengths) - lengths
  tokens = np.flatnonzero(lengths > 0)
  tokens = tokens[~np.isin(tokens, ends)]
  parents, count, levels, depth = np.zeros(len(tokens), np.int64), 1, [], 0
  while len(tokens):
    keys, nodes = np.unique(
        parents * _BYTES + text[starts[tokens] + depth], return_inverse=True)
    depth += 1
    whole = lengths[tokens] == depth
    order = np.argsort(nodes[whole], kind="stable")
    levels.append(_Level(
        np.searchsorted(keys // _BYTES, np.arange(count + 1)), keys % _BYTES,
        np.searchsorted(nodes[whole][order], np.arange(len(keys) + 1)),
        tokens[whole][order].astype(np.int32)))
    parents, tokens, count = nodes[~whole], tokens[~whole], len(keys)
  return levels
