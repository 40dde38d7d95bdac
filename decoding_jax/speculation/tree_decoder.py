"""The loop's step for draft trees: propose, score, verify, commit, observe."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers, random
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.speculation import tree as tree_lib, verifiers
from decoding_jax.speculation.drafters import feature_head
from decoding_jax.types import (Context, DecodeState, Decoder, Drafter,
                                DraftTree, Head, LanguageModel, Method, NONE,
                                Pair, Seen, Stats, Verdict)


def decoder_of(method: Method, greedy: bool) -> Decoder | None:
  """The decoder of a method.

  Args:
    method: any method.
    greedy: whether the temperature is 0.

  Returns:
    The decoder; None if the method has none at this temperature.
  """
  return as_decoder(method.greedy if greedy else method.sampled)


def decoders(method: Method) -> list[Decoder]:
  """Returns the decoders of a method, at temperatures above 0 and at 0."""
  found = (decoder_of(method, greedy) for greedy in (False, True))
  return [decoder for decoder in found if decoder is not None]


def as_decoder(kind: Pair | Decoder | None) -> Decoder | None:
  """Returns the decoder that a pair stands for; a decoder unchanged."""
  return of_pair(kind) if isinstance(kind, Pair) else kind


@functools.lru_cache(maxsize=None)
def of_pair(pair: Pair) -> Decoder:
  """The decoder that drafts a tree, scores it, verifies and commits a path.

  Args:
    pair: what drafts and verifies.

  Returns:
    The decoder.
  """
  layout = pair.drafter.layout
  # A commit writes the whole path and the late token, counted or not.
  return Decoder(functools.partial(_init, pair),
                 functools.partial(_step, pair),
                 max_slots_ahead=tree_lib.depth(layout) + 1,
                 max_samples_per_node=max(tree_lib.max_branching(layout), 1,
                                          pair.drafter.max_samples_per_node),
                 needs_draft=pair.drafter.calls > 0,
                 takes_head=pair.drafter.takes_head,
                 step_with_tree=functools.partial(_step_with_tree, pair))


def _step(pair: Pair, context: Context, state: DecodeState) -> DecodeState:
  return _step_with_tree(pair, context, state)[0]


def _step_with_tree(pair: Pair, context: Context,
                    state: DecodeState) -> tuple[DecodeState, Seen]:
  """One draft, one target call, one commit."""
  layout = pair.drafter.layout
  keys = jax.vmap(random.fold_in)(state.keys, state.step)
  draft_keys, verify_keys = jax.vmap(random.split, out_axes=1)(keys)
  # Profiles tell the parts of a step by these names.
  with jax.named_scope("draft"):
    tree, pending = pair.drafter.propose(draft_keys, context, state)
  with jax.named_scope("target_forward"):
    logits, block = _scoring(pair.drafter, context.target)(
        context, state.target_cache, tree, state.length)
  with jax.named_scope("verify"):
    verdict = jax.vmap(
        lambda *row: verifiers.walk(row[0], pair.verifier, layout, *row[1:]))(
            verify_keys, tree, logits, context.warper)
  with jax.named_scope("commit"):
    after, tokens, count = _commit(state, context, tree, verdict, logits,
                                   block)
    after = after.replace(stats=_count(
        state, pair.drafter, draft_calls(pair.drafter, context.draft), tree,
        verdict, count))
    seen = Seen(tree, logits, block, verdict, tokens, count, pending)
    return pair.drafter.observe(context, state, after, seen), seen


def _commit(state: DecodeState, context: Context, tree, verdict, logits,
            block):
  """The state with the accepted path, its tokens, how many were committed."""
  tokens = _path_tokens(tree, verdict)
  slots = cache_lib.await_logits(verdict.path, logits)
  logits = buffers.take_along(logits, verdict.path[:, :, None], axis=1)
  after, count = token_buffer.commit(
      state, tokens, token_buffer.log_probs(logits, tokens),
      verdict.num_accepted + 1, context.eos_id)
  return after.replace(target_cache=cache_lib.commit(
      state.target_cache, block, slots, count)), tokens, count


def _scoring(drafter: Drafter, target: LanguageModel):
  """Returns the function that scores the trees of a drafter."""
  if drafter.budget and target.packs:
    return functools.partial(score_valid, drafter.budget)
  return score_drafted if drafter.skips else score


def score(context: Context, cache, tree: DraftTree, length, *packed):
  """One target call over the root and all nodes.

  Args:
    context: holds the target.
    cache: the target's, without the root.
    tree: what to score.
    length: `[B]` int32, committed tokens, the root included.
    *packed: of a target that packs, see `types.LanguageModel`.

  Returns:
    logits `[B, M, V]` and a block of M slots.
  """
  block = cache_lib.init_block(cache, tree.tokens.shape[1])
  positions = (length - 1)[:, None] + tree_lib.positions(tree)
  return context.target.forward(context.target_params, tree.tokens, positions,
                                cache, block, 0, tree.mask, *packed)


def score_valid(budget, context: Context, cache, tree: DraftTree, length):
  """As `score`, of the roots and valid nodes alone, B + N tokens in one block.

  Linear layers compute these B + N tokens, whichever rows they are of; for
  attention, which reads a cache of each row, rows have M tokens again.
  """
  size = len(length) + budget(len(length))
  nodes, = jnp.nonzero(tree.valid.ravel(), size=size,
                       fill_value=tree.valid.size)
  return score(context, cache, tree, length, nodes.astype(jnp.int32))


def score_drafted(context: Context, cache, tree: DraftTree, length):
  """As `score`; of the root alone where no row has drafted anything.

  Such a step then costs what one of plain decoding does. Logits of the other
  nodes are 0, and their slots of the block empty.
  """
  def root(tree):
    first = tree.replace(tokens=tree.tokens[:, :1], mask=tree.mask[:, :1])
    block = cache_lib.init_block(cache, tree.tokens.shape[1])
    logits, block = context.target.forward(
        context.target_params, first.tokens, (length - 1)[:, None], cache,
        block, 0, first.mask)
    nodes = tree.tokens.shape[1] - 1
    return jnp.pad(logits, ((0, 0), (0, nodes), (0, 0))), block

  return jax.lax.cond(
      tree.valid[:, 1:].any(),
      lambda tree: score(context, cache, tree, length), root, tree)


def _path_tokens(tree: DraftTree, verdict: Verdict):
  """`[B, D + 1]`, the accepted tokens and the one after them."""
  order = jnp.arange(verdict.path.shape[1])[None]
  accepted = buffers.take_along(tree.tokens, verdict.path, axis=1)
  return jnp.where(order == verdict.num_accepted[:, None],
                   verdict.token[:, None], jnp.roll(accepted, -1, axis=1))


def _init(pair: Pair, context: Context, state: DecodeState) -> DecodeState:
  layout = pair.drafter.layout
  batch = len(state.length)
  zeros = jnp.zeros(batch, jnp.int32)
  ranks = jnp.zeros((batch, tree_lib.max_branching(layout)), jnp.int32)
  depths = jnp.zeros((batch, tree_lib.depth(layout) + 1), jnp.int32)
  return pair.drafter.init(context, state.replace(stats=Stats(
      zeros, zeros, zeros, zeros, depths,
      {"tested_by_rank": ranks, "accepted_by_rank": ranks})))


def draft_calls(drafter: Drafter, draft: LanguageModel | Head | None) -> int:
  """Returns the forwards of a draft model or a head that a step takes."""
  if isinstance(draft, Head) and drafter.calls:
    return feature_head.calls(drafter, draft)
  return drafter.calls


def _count(state: DecodeState, drafter, calls, tree: DraftTree,
           verdict: Verdict, count) -> Stats:
  stats, runs = state.stats, (~state.done).astype(jnp.int32)
  layout = drafter.layout
  ranks = jnp.arange(tree_lib.max_branching(layout))[None, None]
  rank = verdict.ranks[:, :, None]
  tested = (ranks < verdict.num_children[:, :, None]) & (
      (ranks <= rank) | (rank == NONE))
  depths = jnp.arange(tree_lib.depth(layout) + 1)[None]
  by_depth = depths == verdict.num_accepted[:, None]
  add = lambda total, hits: total + runs[:, None] * hits.astype(jnp.int32)
  return Stats(
      target_calls=stats.target_calls + runs,
      draft_calls=stats.draft_calls + runs * calls,
      emitted=stats.emitted + count,
      nodes=stats.nodes + runs * (
          tree.valid[:, 1:].sum(axis=1, dtype=jnp.int32) if drafter.budget
          else tree_lib.num_nodes(layout)),
      accepted_by_depth=add(stats.accepted_by_depth, by_depth),
      extra={
          "tested_by_rank": add(stats.extra["tested_by_rank"], tested.sum(1)),
          "accepted_by_rank": add(stats.extra["accepted_by_rank"],
                                  (ranks == rank).sum(1))})
