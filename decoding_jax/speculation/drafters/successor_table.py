"""Token Recycling (arXiv 2408.08696): a table of likely successors.

A row keeps each token's K most probable successors by the latest target logits.
They fill a static tree, and every scored node renews an entry.
"""

import functools
import heapq
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import sampling
from decoding_jax.runtime import token_buffer
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import (Context, DecodeState, Drafter, DraftTree,
                                Layout, NONE, Seen)


@functools.lru_cache(maxsize=None)
def token_recycling(widths: tuple[int, ...], branching: int) -> Drafter:
  """Makes the drafter of a table `[B, V, K]`, which begins empty.
  `draft_params` of `dj.generate`, if there are any, are a table `[V, K]` int32
  to begin with, `NONE` where nothing is known. `widths` are nodes of level 1,
  2, ..., D; `branching` is K."""
  layout = template(widths, branching)
  return Drafter(
      layout, functools.partial(_init, branching),
      functools.partial(_propose, layout), _observe, calls=0)


def template(widths: tuple[int, ...], branching: int) -> Layout:
  """Returns the static tree of the most promising nodes of each level.
  Successors are ranked: a node is the more promising the lower the ranks on its
  path, rank r counting as a factor of 1 / (r + 1)."""
  children, level = [], [1.0]
  for width in widths:
    scores = [(score / (rank + 1), -parent, -rank) for parent, score in
              enumerate(level) for rank in range(branching)]
    best = sorted(heapq.nlargest(width, scores), key=lambda x: (-x[1], -x[2]))
    counts = [0] * len(level)
    for _, parent, _ in best:
      counts[-parent] += 1
    children.append(tuple(counts))
    level = [score for score, _, _ in best]
  return tree_lib.static_layout(tuple(children))


def _init(size, context: Context, state: DecodeState) -> DecodeState:
  shape = (context.target.vocab_size, min(size, context.target.vocab_size))
  table = (jnp.full(shape, NONE, jnp.int32) if context.draft_params is None
           else token_buffer.known(context.draft_params, shape[0]))
  if table.shape != shape:
    raise ValueError(f"draft_params has shape {table.shape}: a table of "
                     f"successors of shape [V, K]={shape} is needed, or None.")
  return state.replace(carry=jnp.broadcast_to(table, (len(state.length),
                                                      *shape)))


def _propose(layout, keys, context: Context,
             state: DecodeState) -> tuple[DraftTree, None]:
  """Fills in the tree level by level, each node from its parent's entry."""
  del keys, context
  tree = tree_lib.root(token_buffer.newest(state, 1)[:, 0],
                       tree_lib.num_nodes(layout))
  starts = [level.start for level in tree_lib.level_slices(layout)]
  for level, counts in enumerate(layout.children):
    parents = starts[level] + np.repeat(
        np.arange(len(counts), dtype=np.int32), counts)
    ranks = np.array([*itertools.chain(*map(range, counts))])
    tokens = jax.vmap(lambda table, x: table[x, ranks])(
        state.carry, tree.tokens[:, parents])
    tree = tree_lib.add_level(
        tree, jnp.int32(starts[level + 1]), jnp.maximum(tokens, 0),
        jnp.broadcast_to(parents, tokens.shape),
        tree.valid[:, parents] & (tokens != NONE))
  return tree, None


def _observe(context: Context, before: DecodeState, after: DecodeState,
             seen: Seen) -> DecodeState:
  """Renews the entries of all nodes; of equal tokens the deepest counts."""
  del context
  tree, size = seen.tree, before.carry.shape[-1]
  successors = sampling.top_k(seen.logits.astype(jnp.float32), size)[1]
  order = jnp.arange(tree.tokens.shape[1])
  renewed_later = (tree.tokens[:, :, None] == tree.tokens[:, None]) & (
      tree.valid[:, None] & (order[None] > order[:, None])[None])
  vocab_size = before.carry.shape[1]
  renews = tree.valid & ~renewed_later.any(axis=-1) & (seen.count > 0)[:, None]
  entries = jnp.where(renews, tree.tokens, vocab_size)
  put = lambda table, at, x: table.at[at].set(x, mode="drop")
  return after.replace(carry=jax.vmap(put)(
      before.carry, entries, successors.astype(jnp.int32)))
