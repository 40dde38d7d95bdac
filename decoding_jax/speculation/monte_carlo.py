"""Trees of the texts that a Monte Carlo tree search visits most often.

ADED (arXiv 2407.12021). A simulation descends from the root to the child with
the largest

    mean value + (32 + log((n + 9) / 8)) prior sqrt(n) / (1 + visits)

of n visits of their parent, down to a new node. From there it draws a text by
the scores; 1 plus their sum is the value of all nodes on the path. No node has
more visits than its parent, so the N most visited form a tree.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax.kernels import random
from decoding_jax.types import Array, FreeLayout

# Of the authors' code: exploration, and how it grows with the visits.
_EXPLORATION, _BASE = 32.0, 8.0
# Whether a simulation goes on down, or has come to a new node or to an end.
_DOWN, _NEW, _END = range(3)


@flax.struct.dataclass
class _Nodes:
  """The nodes of one row, the root first; children are 0 where there is none.
  `known` are tokens `[M, K]`, scores `[M, K]` and states `[M, K, ...]` of what
  may come after a node."""
  tokens: Array
  parents: Array
  depths: Array
  visits: Array
  totals: Array
  children: Array
  known: Any


def expand(key, layout: FreeLayout, simulations: int, start, successors):
  """Returns the N most visited of S `simulations`, as `best_first.expand`.
  Scores `[K]` of `successors` are no probabilities: 0 where there is none."""
  size = 1 + simulations
  blank = lambda x: jnp.broadcast_to(x[None], (size, *x.shape))
  whole, known = jnp.zeros(size, jnp.int32), successors(start)
  nodes = _Nodes(whole, whole, whole, whole, whole.astype(jnp.float32),
                 jnp.zeros((size, layout.branching), jnp.int32),
                 jax.tree.map(blank, known))

  def simulate(i, nodes):
    node, rank, move = _descend(layout, nodes)
    is_new = move == _NEW
    token, _, state = (x[node, rank] for x in nodes.known)
    at = jnp.where(is_new, i, size)  # Beyond them: not written.
    put = lambda x, y: x.at[at].set(y, mode="drop")
    nodes = nodes.replace(
        tokens=put(nodes.tokens, token), parents=put(nodes.parents, node),
        depths=put(nodes.depths, nodes.depths[node] + 1),
        children=nodes.children.at[jnp.where(is_new, node, size), rank].set(
            i, mode="drop"),
        known=jax.tree.map(put, nodes.known, successors(state)))
    leaf = jnp.where(is_new, i, node)
    value = _draw(random.fold_in(key, i), layout.depth, nodes, leaf, successors)
    return _back_up(layout.depth, nodes, leaf, 1 + value)

  nodes = jax.lax.fori_loop(1, size, simulate, nodes)
  order = 1 + jnp.argsort(-nodes.visits[1:], stable=True)
  rank = jnp.zeros(size, jnp.int32).at[order].set(
      jnp.arange(1, size, dtype=jnp.int32))
  best = order[:layout.nodes]
  return nodes.tokens[best], rank[nodes.parents[best]], nodes.visits[best] > 0


def _descend(layout, nodes: _Nodes):
  """Returns the last node on the way, a rank of its children, and the end."""
  def step(carry):
    node = carry[0]
    rank, some = _select(nodes, node)
    child, goes = nodes.children[node, rank], nodes.depths[node] < layout.depth
    move = jnp.where(some & goes, jnp.where(child > 0, _DOWN, _NEW), _END)
    return jnp.where(move == _DOWN, child, node), rank, move

  zero = jnp.int32(0)
  return jax.lax.while_loop(lambda carry: carry[2] == _DOWN, step, (
      zero, zero, jnp.asarray(_DOWN)))


def _select(nodes: _Nodes, node):
  """Returns the rank of the best child of a node, and whether it has any."""
  scores, child = nodes.known[1][node], nodes.children[node]
  visits = jnp.where(child > 0, nodes.visits[child], 0).astype(jnp.float32)
  mean = jnp.where(child > 0, nodes.totals[child], 0) / jnp.maximum(visits, 1)
  count = nodes.visits[node].astype(jnp.float32)
  weight = _EXPLORATION + jnp.log((count + _BASE + 1) / _BASE)
  prior = scores / jnp.maximum(scores.sum(), 1e-30)
  bound = mean + weight * prior * jnp.sqrt(count) / (1 + visits)
  return jnp.argmax(jnp.where(scores > 0, bound, -jnp.inf)).astype(
      jnp.int32), (scores > 0).any()


def _draw(key, depth, nodes: _Nodes, leaf, successors):
  """Returns the sum of the scores of a text that they draw after a node."""
  def step(i, carry):
    known, total, alive = carry
    _, scores, states = known
    alive = alive & (scores > 0).any() & (nodes.depths[leaf] + i < depth)
    chosen = jax.random.categorical(random.fold_in(key, i), jnp.log(scores))
    return (successors(states[chosen]),
            total + jnp.where(alive, scores[chosen], 0), alive)

  known = jax.tree.map(lambda x: x[leaf], nodes.known)
  return jax.lax.fori_loop(0, depth, step, (
      known, jnp.float32(0), jnp.bool_(True)))[1]


def _back_up(depth, nodes: _Nodes, leaf, value) -> _Nodes:
  """Adds a visit and its value to a node and all above it."""
  def step(_, carry):
    node, visits, totals = carry
    at = jnp.where(node >= 0, node, len(visits))
    above = jnp.where(node > 0, nodes.parents[node], -1)
    return (above, visits.at[at].add(1, mode="drop"),
            totals.at[at].add(value, mode="drop"))

  _, visits, totals = jax.lax.fori_loop(0, depth + 1, step, (
      leaf, nodes.visits, nodes.totals))
  return nodes.replace(visits=visits, totals=totals)
