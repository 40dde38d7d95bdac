"""Best-first trees: the nodes that the draft model finds most probable.

OPT-Tree (arXiv 2406.17276) and EAGLE-2 (arXiv 2406.16858): a beam search drafts
a larger tree, of which the target scores the N nodes with the most probable
paths. No node is more probable than its parent, so these form a tree. EAGLE-2
ranks all children that the beam search has looked at, which cost no forward.
"""

import functools

import jax.numpy as jnp

from decoding_jax import kernels, sampling
from decoding_jax.kernels import buffers, vocabulary
from decoding_jax.speculation import expanders, tree as tree_lib
from decoding_jax.speculation.drafters import language_model
from decoding_jax.types import (Context, DecodeState, Drafter, DraftTree,
                                Layout, NONE, Seen)
from decoding_jax.validation import values


@functools.lru_cache(maxsize=None)
def best_first(nodes: int, width: int, depth: int,
               rank_temperature: float = 1.0, rank_all: bool = False,
               threshold: float = 0.0) -> Drafter:
  """Returns the drafter of the N = `nodes` best nodes of a beam search.

  The draft model searches `depth` levels of `width` nodes. None of the N most
  probable texts of up to D tokens is missing if `width` is N or more.
  `rank_temperature` is of `sharpened`. `rank_all` ranks the `width` best
  children of each node that was expanded, the beam's among them. A level after
  which the N best nodes have less than `threshold` more probability in all is a
  row's last. Raises ValueError unless sizes are positive integers, N nodes or
  more are ranked, and N is at least `depth`.
  """
  values.check_positives(nodes=nodes, width=width, depth=depth)
  most, form = width * depth, "width * depth"
  if rank_all:
    most, form = width + (depth - 1) * width**2, "width + (depth - 1) * width²"
  if not depth <= nodes <= most:
    raise ValueError(f"nodes={nodes}: depth={depth} to {form}={most} nodes are "
                     "needed.")
  width = min(width, nodes)
  grown = expanders.top_beam(width, depth)
  if threshold:
    grown = grown._replace(goes_on=functools.partial(
        _gains, grown.layout, nodes, threshold))
  return Drafter(
      tree_lib.free_layout(nodes, depth, width), language_model.init,
      functools.partial(_propose, grown, nodes, rank_temperature, rank_all),
      _observe_levels if threshold else observe, calls=depth)


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
  mask = buffers.take_along(tree.mask, kept[:, :, None], axis=1)
  mask = buffers.take_along(mask, kept[:, None], axis=2)
  return DraftTree(*_nodes(kept, tree.tokens, tree.parents, tree.valid), mask)


def _nodes(kept, tokens, parents, valid):
  """Tokens, parents and valid of the nodes that are kept."""
  tokens, parents, valid = (buffers.take_along(x, kept, axis=1)
                            for x in (tokens, parents, valid))
  # The new index of a node is how many of those kept are before it.
  parents = (kept[:, None] <= parents[:, :, None]).sum(axis=-1) - 1
  return tokens, parents.astype(jnp.int32), valid


def _propose(grown, nodes, rank_temperature, rank_all, keys, context: Context,
             state: DecodeState):
  """The tree; the draft block, the grown node that each node is, and levels."""
  context = sharpened(context, rank_temperature)
  tree, block = language_model.propose(grown, keys, context, state)
  totals = path_log_probs(grown.layout, tree)
  if not rank_all and grown.goes_on is None:
    kept = best_nodes(totals, nodes)
    return subtree(tree, kept), (block, kept)
  ranked, depths = (tree.tokens, tree.parents), tree_lib.positions(tree)
  levels = jnp.where(tree.valid, depths, 0).max(axis=1)
  # Only nodes above the row's last level went through the draft model for it.
  is_inner = depths < levels[:, None]
  if rank_all:
    totals, *ranked = (
        jnp.concatenate([x, more.reshape(len(x), -1)], axis=1)
        for x, more in zip((totals, *ranked), _other_children(
            tree, jnp.where(is_inner, totals, -jnp.inf),
            grown.layout.widths[0])))
  kept = best_nodes(totals, nodes)
  is_inner = buffers.take_along(jnp.pad(is_inner, (
      (0, 0), (0, totals.shape[1] - is_inner.shape[1]))), kept, axis=1)
  # Nodes of levels that no row has drafted have an empty mask.
  return tree_lib.from_parents(*_nodes(kept, *ranked, totals > -jnp.inf)), (
      block, jnp.where(is_inner, kept, NONE), levels)


def _other_children(tree: DraftTree, totals, width):
  """Totals, tokens and parents `[B, I, K]` of the K = `width` most probable
  children of the I nodes of `tree.log_probs`; -inf of those in the tree."""
  own, tokens = sampling.top_k(tree.log_probs, min(
      width, tree.log_probs.shape[-1]))
  nodes = jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :, None]
  is_in_tree = ((tree.parents[:, None, None] == nodes[..., None]) & (
      tree.tokens[:, None, None] == tokens[..., None])).any(axis=-1)
  above = totals[:, :tokens.shape[1], None]
  return (jnp.where(is_in_tree | (above == -jnp.inf), -jnp.inf,
                    above + jnp.minimum(own, 0)),
          tokens.astype(jnp.int32), jnp.broadcast_to(nodes, tokens.shape))


def _gains(layout: Layout, nodes, threshold, level, tree: DraftTree):
  """Returns `[B]` bool, whether the newest level, number `level []`, brings the
  expected tokens of the N best nodes `threshold` further."""
  probs = jnp.exp(path_log_probs(layout, tree))[:, 1:]
  is_old = jnp.asarray(tree_lib.depths(layout))[None, 1:] < level
  after, before = (kernels.top_k(x, nodes)[0].sum(axis=1)
                   for x in (probs, jnp.where(is_old, probs, 0)))
  return after - before >= threshold


def _observe_levels(context: Context, before: DecodeState, after: DecodeState,
                    seen: Seen) -> DecodeState:
  """Observes, and counts the levels that a row has drafted."""
  after = observe(context, before, after, seen)
  counted = after.stats.draft_calls - before.stats.draft_calls
  return after.replace(stats=after.stats.replace(
      draft_calls=before.stats.draft_calls + jnp.minimum(
          counted, seen.pending[2])))


def observe(context: Context, before: DecodeState, after: DecodeState,
            seen: Seen) -> DecodeState:
  """Does `Drafter.observe`; `pending` is draft block, kept nodes and more."""
  block, kept, *_ = seen.pending
  path = buffers.take_along(kept, seen.verdict.path, axis=1)
  return language_model.observe(context, before, after,
                                seen.replace(pending=block), path)
