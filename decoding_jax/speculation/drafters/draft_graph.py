"""Graph-structured speculative decoding (arXiv 2407.16207): a graph of drafts.

The draft model expands W nodes a level. A draft that ends in the same tokens as
an expanded node reuses its successors: the most probable paths of
the graph are unrolled into a tree.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.speculation import best_first, tree as tree_lib
from decoding_jax.speculation.drafters import language_model
from decoding_jax.types import (Array, Context, DecodeState, Drafter, NONE,
                                Seen)


@functools.lru_cache(maxsize=None)
def gsd(nodes: int, width: int, depth: int, branching: int, repeat: int,
        min_probability: float, min_share: float) -> Drafter:
  """Makes the drafter of `methods.gsd`, with its arguments."""
  layout = tree_lib.free_layout(nodes, depth, branching)
  grow = functools.partial(_grow, width, branching, min_probability, min_share)
  return Drafter(layout, lambda context, state: state, functools.partial(
      _propose, layout, width, repeat, grow), _observe, calls=depth,
                 draft_calls=language_model.own_cache(depth))


@flax.struct.dataclass
class _Graph:
  """I nodes that may be expanded: the root, and W a level."""
  # `[B, I, R]` int32, the last tokens of the text up to each node; NONE where
  # there is no node.
  ends: Array
  mask: Array  # `[B, I, I]` bool, each node and its ancestors
  chance: Array  # `[B, I]` float32, probability of the path to it
  # `[B, I, K]`, its children, their probabilities, and which node has their
  # children; NONE for a leaf.
  tokens: Array
  shares: Array
  links: Array


def _propose(layout, width, repeat, grow, keys, context: Context,
             state: DecodeState):
  """The tree; the draft block, and which of the late tokens are in it."""
  del keys
  depth, cache, length = layout.depth, state.draft_cache, state.length[:, None]
  late, batch, size = depth + 1, len(length), 1 + depth * width
  inner = size - width  # The last level is not expanded.
  # The draft cache lacks all tokens that the last step has committed.
  tokens, places = token_buffer.newest(state, late), jnp.arange(late)[None]
  there = places >= late - (length - cache.length[:, None])
  block = cache_lib.init_block(cache, late + inner - 1)
  pad = lambda x, wide: jnp.pad(x, ((0, 0), (0, 0), (0, wide)))
  mask = (there[:, None] & (places <= places.T)[None]) | jnp.eye(
      late, dtype=bool)[None]
  forward = functools.partial(context.draft.forward, context.draft_params)
  logits, block = forward(tokens, jnp.maximum(length - late + places, 0), cache,
                          block, 0, pad(mask, inner - 1))
  many = lambda *shape, dtype=jnp.int32: jnp.full(
      (batch, size, *shape), NONE if dtype == jnp.int32 else 0, dtype)
  graph = _Graph(
      many(repeat + 1).at[:, 0].set(token_buffer.newest(state, repeat + 1)),
      many(size, dtype=bool) | jnp.eye(size, dtype=bool)[None],
      many(dtype=jnp.float32).at[:, 0].set(1), many(layout.branching),
      many(layout.branching, dtype=jnp.float32), many(layout.branching))
  grow = jax.vmap(grow, (0, 0, 0, None))
  graph = grow(context.draft_warper, logits[:, -1:], graph, 0)

  def level(number, carry):
    graph, block = carry
    start = 1 + (number - 1) * width
    take = lambda x: jax.lax.dynamic_slice_in_dim(x, start, width, 1)
    sees = jnp.concatenate([
        jnp.broadcast_to(there[:, None], (batch, width, late)),
        take(graph.mask)[:, :, 1:inner]], axis=2)
    logits, block = forward(
        jnp.maximum(take(graph.ends)[:, :, -1], 0),
        jnp.broadcast_to(length - 1 + number, (batch, width)), cache, block,
        late - 1 + start, sees)
    return grow(context.draft_warper, logits, graph, start), block

  if depth > 1:
    graph, block = jax.lax.fori_loop(1, depth, level, (graph, block))
  unroll = lambda x: best_first.expand(layout, jnp.int32(0), lambda at: (
      x.tokens[at], jnp.where(at == NONE, 0, x.shares[at]), x.links[at]))
  nodes = jax.vmap(unroll)(graph)
  return best_first.with_root(tokens[:, -1], *nodes), (block, there)


def _grow(width, branching, min_probability, min_share, warper, logits,
          graph: _Graph, start) -> _Graph:
  """Adds the children of a level, the best new ones as the next level's nodes.
  Of one row; `logits` are `[W, V]`, of the nodes from `start` on."""
  shares, tokens = sampling.top_k(jnp.exp(sampling.log_probs(warper, logits)),
                                  branching)
  own = start + jnp.arange(len(logits))
  alive = (graph.chance[own] > 0)[:, None] & (
      shares >= min_share * shares[:, :1])
  shares = jnp.where(alive, shares, 0)
  parents = jnp.repeat(own, branching)
  ends = jnp.concatenate([graph.ends[parents, 1:], tokens.reshape(-1, 1)], 1)
  grows = ((shares > 0) & (shares >= min_probability)).ravel()
  equal = lambda x: (ends[:, None] == x[None]).all(axis=-1) & grows[:, None]
  # Not an ancestor: the drafts would be a circle.
  old = equal(graph.ends) & ~graph.mask[parents]
  first = jnp.argmax(equal(ends) & grows[None], axis=1)
  new = grows & ~old.any(axis=1) & (first == jnp.arange(len(ends)))
  chance, best = jax.lax.top_k(jnp.where(
      new, graph.chance[parents] * shares.ravel(), 0), min(width, len(ends)))
  nodes = jnp.where(chance > 0, start + len(own) + jnp.arange(len(best)), NONE)
  links = jnp.full(len(ends), NONE, nodes.dtype).at[best].set(nodes)
  links = jnp.where(old.any(axis=1), jnp.argmax(old, axis=1), links)
  links = jnp.where(grows, links[first], NONE)
  at = jnp.where(chance > 0, nodes, len(graph.chance))  # Beyond: not written.
  put = lambda x, at, y: x.at[at].set(y.reshape(-1, *x.shape[1:]).astype(
      x.dtype), mode="drop")
  return _Graph(
      put(graph.ends, at, ends[best]),
      put(graph.mask, at, graph.mask[parents[best]] | graph.mask[nodes]),
      put(graph.chance, at, chance), put(graph.tokens, own, tokens),
      put(graph.shares, own, shares), put(graph.links, own, links))


def _observe(context: Context, before: DecodeState, after: DecodeState,
             seen: Seen) -> DecodeState:
  """Commits the tokens that were late; the path's tokens are late next time."""
  del context
  block, there = seen.pending
  fresh = there.sum(axis=1, dtype=jnp.int32)
  slots = there.shape[1] - fresh[:, None] + jnp.arange(there.shape[1])[None]
  slots = cache_lib.await_logits(jnp.minimum(slots, there.shape[1] - 1),
                                 seen.logits)
  return after.replace(draft_cache=cache_lib.commit(
      before.draft_cache, block, slots, jnp.where(seen.count > 0, fresh, 0)))
