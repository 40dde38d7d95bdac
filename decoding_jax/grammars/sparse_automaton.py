"""Automata over tokens of which each state allows few: a trie of many texts.

Arcs of a state are adjacent, as in compressed sparse rows: a dense table of Q
states and V tokens would not fit for a catalogue.
"""

import flax.struct
import jax.numpy as jnp
import numpy as np

from decoding_jax.types import Array, NONE


@flax.struct.dataclass
class SparseAutomaton:
  """A deterministic automaton of E arcs; state 0 is the first one."""
  starts: Array  # `[Q + 1]` int32, the first arc of each state
  tokens: Array  # `[E]` int32, of each arc
  following: Array  # `[E]` int32, the state to which it leads
  order: Array  # `[K]` int32, 0 to K - 1: arcs of the state with the most
  vocabulary: Array  # `[V]` bool, tokens of any arc


def from_arcs(arcs, vocab_size: int) -> SparseAutomaton:
  """Returns the automaton of a dict token -> state for each state."""
  counts = np.array([len(x) for x in arcs])
  starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
  tokens = np.fromiter((token for x in arcs for token in x), np.int32,
                       starts[-1])
  following = np.fromiter((state for x in arcs for state in x.values()),
                          np.int32, starts[-1])
  vocabulary = np.zeros(vocab_size, bool)
  vocabulary[tokens] = True
  return SparseAutomaton(starts, tokens, following,
                         np.arange(max(counts.max(), 1), dtype=np.int32),
                         vocabulary)


def advance(params: SparseAutomaton, state, token):
  """Returns the state after a token; `NONE` where it is forbidden."""
  arcs, theirs = arcs_of(params, state)
  hit = theirs & (params.tokens[arcs] == token)
  return jnp.where(hit, params.following[arcs], NONE).max()


def process(params: SparseAutomaton, state, logits):
  """Returns logits `[V]`, -inf where a token is forbidden."""
  size = len(params.vocabulary)
  if len(logits) != size:
    raise ValueError(f"an automaton over {size} tokens: one over "
                     f"the model's {len(logits)} tokens is needed.")
  arcs, theirs = arcs_of(params, state)
  tokens = params.tokens[arcs]
  return jnp.full_like(logits, -jnp.inf).at[
      jnp.where(theirs, tokens, size)].set(logits[tokens], mode="drop")


def arcs_of(params: SparseAutomaton, state):
  """Returns numbers of arcs `[K]`, and which of them are the state's own."""
  here = jnp.maximum(state, 0)
  arcs = params.starts[here][None] + params.order
  theirs = (arcs < params.starts[here + 1]) & (state != NONE)
  return jnp.minimum(arcs, len(params.tokens) - 1), theirs
