"""Best-first trees over states with few successors: n-gram tables, graphs.

No text is more probable than its prefix, so the N most probable ones form a
tree, and are visited one after the other.
"""

import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import DraftTree, FreeLayout


def expand(layout: FreeLayout, start, successors):
  """Returns the N most probable nodes below the state `start [...]`, in one
  row. `successors` maps a state to its next (tokens `[K]` int32, probabilities
  `[K]` float32, 0 for none, at most 1 in all, states `[K, ...]`). Returns
  tokens, parents and validity, `[N]` each, parents first; the parent 0 is the
  root."""
  def add(i, carry):
    level, chance, state, known, nodes = carry
    tokens, chances, states = successors(state)
    chances = jnp.where(level < layout.depth, chance * chances, 0)
    known = tuple(x.at[i].set(y) for x, y in zip(known, (
        tokens, chances, jnp.full_like(tokens, level + 1), states)))
    best = kernels.top_k(known[1].ravel(), 1)[1].squeeze(0)
    slot = best // layout.branching, best % layout.branching
    token, chance, level, state = (x[slot] for x in known)
    taken = known[1].at[slot].set(0)
    nodes = tuple(x.at[i].set(y) for x, y in zip(
        nodes, (token, slot[0], chance > 0)))
    return level, chance, state, (known[0], taken, *known[2:]), nodes

  size = layout.nodes, layout.branching
  known = (jnp.zeros(size, jnp.int32), jnp.zeros(size, jnp.float32),
           jnp.zeros(size, jnp.int32),
           jnp.zeros((*size, *start.shape), jnp.int32))
  nodes = tuple(jnp.zeros(layout.nodes, dtype) for dtype in (
      jnp.int32, jnp.int32, bool))
  return jax.lax.fori_loop(0, layout.nodes, add, (
      jnp.int32(0), jnp.float32(1), start, known, nodes))[-1]


def with_root(root, tokens, parents, valid) -> DraftTree:
  """Returns a tree of roots `[B]` and nodes `[B, N]`; parent 0 is the root."""
  before = lambda x, first: jnp.concatenate([first[:, None], x], axis=1)
  return tree_lib.from_parents(
      before(tokens, root), before(parents, jnp.zeros_like(root)),
      before(valid, jnp.ones_like(root, bool)))
