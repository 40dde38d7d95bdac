"""Target forwards of a step; they differ in the nodes that are scored."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.runtime import cache as cache_lib
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import Context, DecodeState, DraftTree


def all_nodes(context: Context, state: DecodeState, tree: DraftTree,
              pending=None):
  """Scores the root and all nodes: logits `[B, M, V]`, a block of M slots."""
  del pending
  return _forward(context, state, tree, tree.tokens.shape[1])


def first_nodes(size: int, context: Context, state: DecodeState,
                tree: DraftTree, pending=None):
  """Scores `size` nodes alone in a step in which no row has a later valid one.
  Such a step costs what one of so small a tree does."""
  del pending
  return jax.lax.cond(
      tree.valid[:, size:].any(), functools.partial(all_nodes, context, state),
      functools.partial(first_alone, size, context, state), tree)


def first_alone(size: int, context: Context, state: DecodeState,
                tree: DraftTree):
  """Scores `size` nodes. Logits of the others are 0, their slots empty."""
  slots = tree.tokens.shape[1]
  logits, block = _forward(context, state, tree.replace(
      tokens=tree.tokens[:, :size], mask=tree.mask[:, :size, :size]), slots)
  return jnp.pad(logits, ((0, 0), (0, slots - size), (0, 0))), block


# For drafters that often draft nothing: such a step is one of plain decoding.
root_unless_drafted = functools.partial(first_nodes, 1)


def valid_nodes(budget, context: Context, state: DecodeState, tree: DraftTree,
                pending=None):
  """Scores the roots and valid nodes alone, of which all rows have `budget(B)`.
  Linear layers compute these B + N tokens, whichever rows they are of; for
  attention, which reads a cache of each row, rows have M tokens again."""
  if not context.target.packs:
    return all_nodes(context, state, tree, pending)
  size = len(tree.tokens) + budget(len(tree.tokens))
  nodes, = jnp.nonzero(tree.valid.ravel(), size=size,
                       fill_value=tree.valid.size)
  return _forward(context, state, tree, tree.tokens.shape[1],
                  nodes.astype(jnp.int32))


def _forward(context, state, tree, slots, *packed):
  """Runs the target on a tree, into a block of at least as many slots."""
  cache, size = state.target_cache, tree.tokens.shape[1]
  positions = (state.length - 1)[:, None] + tree_lib.positions(tree)
  mask = jnp.pad(tree.mask, ((0, 0), (0, 0), (0, slots - size)))
  return context.target.forward(
      context.target_params, tree.tokens, positions, cache,
      cache_lib.init_block(cache, slots), 0, mask, *packed)
