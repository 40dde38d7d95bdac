"""Best-first trees: the nodes that the draft model finds most probable.

OPT-Tree (arXiv 2406.17276) and the last step of EAGLE-2 (arXiv 2406.16858): a
beam search drafts a larger tree, of which the target scores the N nodes with
the most probable paths. No node is more probable than its parent, so these form
a tree.
"""

import functools

import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax.kernels import buffers, vocabulary
from decoding_jax.speculation import expanders, tree as tree_lib
from decoding_jax.speculation.drafters import language_model
from decoding_jax.types import (Context, DecodeState, Drafter, DraftTree,
                                Layout, Seen)
from decoding_jax.validation import values


@functools.lru_cache(maxsize=None)
def best_first(nodes: int, width: int, depth: int,
               rank_temperature: float = 1.0) -> Drafter:
  """Returns the drafter of the N = `nodes` best nodes of a beam search.

  The draft model searches `depth` levels of `width` nodes. None of the N most
  probable texts of up to D tokens is missing if `width` is N or more.
  `rank_temperature` is of `sharpened`. Raises ValueError unless sizes are
  positive integers, the search has N nodes or more, and N is at least `depth`.
  """
  for name, value in (("nodes", nodes), ("width", width), ("depth", depth)):
    values.check_positive(name, value)
  if not depth <= nodes <= width * depth:
    raise ValueError(f"nodes={nodes}: depth={depth} to width * depth="
                     f"{width * depth} nodes are needed.")
  grown = expanders.top_beam(min(width, nodes), depth)
  return Drafter(
      tree_lib.free_layout(nodes, depth, min(width, nodes)),
      language_model.init,
      functools.partial(_propose, grown, nodes, rank_temperature), observe,
      calls=depth)


def sharpened(context: Context, temperature: float) -> Context:
  """Returns the context of drafts that a target of temperature 0 is to match.
  Its most probable token is more certain than the draft model's probabilities,
  which are of samples: logits at a lower `temperature` fit. Else no change."""
  if not context.warper.greedy or temperature == 1:
    return context
  warper = context.draft_warper
  return context.replace(draft_warper=warper.replace(
      temperature=warper.temperature * temperature))


def path_log_probs(layout: Layout, tree: DraftTree):
  """Returns `[B, M]` log-probabilities of the paths to nodes, the root's 0.
  Never more than the parent's, not even by rounding; -inf if not valid."""
  totals = jnp.zeros_like(tree.log_probs[:, :1, 0])
  for level in tree_lib.level_slices(layout)[1:]:
    parents, tokens = tree.parents[:, level], tree.tokens[:, level]
    own = buffers.take_along(tree.log_probs, parents[:, :, None], axis=1)
    own = vocabulary.take(own, tokens[:, :, None])[:, :, 0]
    above = buffers.take_along(totals, parents, axis=1)
    totals = jnp.concatenate([totals, jnp.where(
        tree.valid[:, level], above + jnp.minimum(own, 0), -jnp.inf)], axis=1)
  return totals


def best_nodes(totals, nodes: int):
  """Returns `[B, 1 + nodes]` indices of the largest `totals [B, M]`, ascending.
  The root is among them, and of equal totals the lower index: a parent whose
  total is no less comes before its child."""
  best = jnp.sort(kernels.top_k(totals[:, 1:], nodes)[1], axis=1)
  return jnp.pad(1 + best, ((0, 0), (1, 0))).astype(jnp.int32)


def subtree(tree: DraftTree, kept) -> DraftTree:
  """Returns the tree of nodes `kept [B, N]`, ascending, with all their parents.
  It has no log-probabilities."""
  take = lambda x: buffers.take_along(x, kept, axis=1)
  # The new index of a node is how many of those kept are before it.
  parents = take(tree.parents)
  parents = (kept[:, None] <= parents[:, :, None]).sum(axis=-1) - 1
  mask = buffers.take_along(tree.mask, kept[:, :, None], axis=1)
  mask = buffers.take_along(mask, kept[:, None], axis=2)
  return DraftTree(take(tree.tokens), parents.astype(jnp.int32),
                   take(tree.valid), mask)


def _propose(grown, nodes, rank_temperature, keys, context: Context,
             state: DecodeState):
  """The tree, the draft block, and which of the grown nodes are in the tree."""
  context = sharpened(context, rank_temperature)
  tree, block = language_model.propose(grown, keys, context, state)
  kept = best_nodes(path_log_probs(grown.layout, tree), nodes)
  return subtree(tree, kept), (block, kept)


def observe(context: Context, before: DecodeState, after: DecodeState,
            seen: Seen) -> DecodeState:
  """Does `Drafter.observe`; `pending` is a draft block, and the kept nodes."""
  block, kept = seen.pending
  path = buffers.take_along(kept, seen.verdict.path, axis=1)
  return language_model.observe(context, before, after,
                                seen.replace(pending=block), path)
