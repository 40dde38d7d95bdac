"""Speculation: a pair of a drafter and a verifier as a decoder."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.kernels import random
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.speculation import drafters
from decoding_jax.speculation import tree as tree_lib, verifiers
from decoding_jax.types import (Context, DecodeState, Decoder, DraftTree, NONE,
                                Pair, Stats, Verdict)


@functools.lru_cache(maxsize=None)
def decoder(kind: Pair | Decoder) -> Decoder:
  """The decoder that drafts a tree, scores it, verifies and commits a path.

  Args:
    kind: what drafts and verifies; or a decoder, which is returned as it is.

  Returns:
    The decoder.
  """
  if isinstance(kind, Decoder):
    return kind
  layout = kind.drafter.layout
  depth = tree_lib.depth(layout)
  # A commit writes the whole path and the late token, counted or not.
  return Decoder(functools.partial(_init, layout),
                 functools.partial(_step, kind),
                 max_slots_ahead=depth + 1,
                 max_samples_per_node=tree_lib.max_branching(layout),
                 needs_draft=depth > 0)


def _step(pair: Pair, context: Context, state: DecodeState) -> DecodeState:
  """One draft, one target call, one commit."""
  layout = pair.drafter.layout
  keys = jax.vmap(random.fold_in)(state.keys, state.step)
  draft_keys, verify_keys = jax.vmap(random.split, out_axes=1)(keys)
  # Profiles tell the parts of a step by these names.
  with jax.named_scope("draft"):
    tree, draft_block = drafters.grow(
        draft_keys, pair.drafter, context.draft, context.draft_params,
        state.draft_cache, token_buffer.newest(state, 2), state.length,
        context.draft_warper)
  with jax.named_scope("target_forward"):
    logits, target_block = score(layout, context, state.target_cache, tree,
                                 state.length)
  with jax.named_scope("verify"):
    verdict = jax.vmap(
        lambda *row: verifiers.walk(row[0], pair.verifier, layout, *row[1:]))(
            verify_keys, tree, logits, context.warper)
  with jax.named_scope("commit"):
    return _commit(state, context, layout, tree, verdict, logits, target_block,
                   draft_block)


def _commit(state: DecodeState, context: Context, layout, tree, verdict, logits,
            target_block, draft_block) -> DecodeState:
  """The state with the accepted path and the token after it."""
  tokens = _path_tokens(tree, verdict)
  slots = cache_lib.await_logits(verdict.path, logits)
  logits = buffers.take_along(logits, verdict.path[:, :, None], axis=1)
  new, count = token_buffer.commit(state, tokens,
                                   token_buffer.log_probs(logits, tokens),
                                   verdict.num_accepted + 1, context.eos_id)
  return new.replace(
      target_cache=cache_lib.commit(state.target_cache, target_block, slots,
                                    count),
      draft_cache=commit_draft(state, draft_block, verdict.path, count),
      stats=_count(state, layout, verdict, count))


def score(layout, context: Context, cache, tree: DraftTree, length):
  """One target call over the root and all nodes.

  Args:
    layout: of the tree.
    context: holds the target.
    cache: the target's, without the root.
    tree: what to score.
    length: `[B]` int32, committed tokens, the root included.

  Returns:
    logits `[B, M, V]` and a block of M slots.
  """
  block = cache_lib.init_block(cache, tree.tokens.shape[1])
  positions = (length - 1)[:, None] + tree_lib.depths(layout)[None]
  return context.target.forward(context.target_params, tree.tokens, positions,
                                cache, block, 0, tree.mask)


def _path_tokens(tree: DraftTree, verdict: Verdict):
  """`[B, D + 1]`, the accepted tokens and the one after them."""
  order = jnp.arange(verdict.path.shape[1])[None]
  accepted = buffers.take_along(tree.tokens, verdict.path, axis=1)
  return jnp.where(order == verdict.num_accepted[:, None],
                   verdict.token[:, None], jnp.roll(accepted, -1, axis=1))


def commit_draft(state: DecodeState, block, path, count):
  """Commits the late token, if there is one, the root, and inner nodes.

  Nodes of the last level are not in the block: where one is accepted, the
  draft cache falls one token after, which the next root level makes good.

  Args:
    state: before anything is committed.
    block: of `drafters.grow`, or None for a tree of a root.
    path: `[B, D + 1]` int32, nodes from the root on.
    count: `[B]` int32, how many of them count.

  Returns:
    The draft cache; all of the path is in it, what does not count after its
    length.
  """
  if block is None:
    return None
  depth = path.shape[1] - 1
  late = state.length - 1 - state.draft_cache.length
  slots = jnp.concatenate([jnp.zeros_like(path[:, :1]), 1 + path[:, :-1]], 1)
  order = jnp.arange(depth + 1)[None] + 1 - late[:, None]
  slots = buffers.take_along(slots, jnp.minimum(order, depth), axis=1)
  count = jnp.where(count > 0, late + jnp.minimum(count, depth), 0)
  return cache_lib.commit(state.draft_cache, block, slots, count)


def _init(layout, context: Context, state: DecodeState) -> DecodeState:
  del context
  batch = len(state.length)
  zeros = jnp.zeros(batch, jnp.int32)
  ranks = jnp.zeros((batch, tree_lib.max_branching(layout)), jnp.int32)
  depths = jnp.zeros((batch, tree_lib.depth(layout) + 1), jnp.int32)
  return state.replace(stats=Stats(
      zeros, zeros, zeros, zeros, depths,
      {"tested_by_rank": ranks, "accepted_by_rank": ranks}))


def _count(state: DecodeState, layout, verdict: Verdict, count) -> Stats:
  stats, runs = state.stats, (~state.done).astype(jnp.int32)
  ranks = jnp.arange(tree_lib.max_branching(layout))[None, None]
  rank = verdict.ranks[:, :, None]
  tested = (ranks < verdict.num_children[:, :, None]) & (
      (ranks <= rank) | (rank == NONE))
  depths = jnp.arange(tree_lib.depth(layout) + 1)[None]
  by_depth = depths == verdict.num_accepted[:, None]
  add = lambda total, hits: total + runs[:, None] * hits.astype(jnp.int32)
  return Stats(
      target_calls=stats.target_calls + runs,
      draft_calls=stats.draft_calls + runs * tree_lib.depth(layout),
      emitted=stats.emitted + count,
      nodes=stats.nodes + runs * tree_lib.num_nodes(layout),
      accepted_by_depth=add(stats.accepted_by_depth, by_depth),
      extra={
          "tested_by_rank": add(stats.extra["tested_by_rank"], tested.sum(1)),
          "accepted_by_rank": add(stats.extra["accepted_by_rank"],
                                  (ranks == rank).sum(1))})
