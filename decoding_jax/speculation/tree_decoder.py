"""The loop's step for draft trees: propose, score, verify, commit, observe."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers, random
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.speculation import tree as tree_lib, verifiers
from decoding_jax.speculation.drafters import feature_head
from decoding_jax.types import (Array, Block, Context, DecodeState, Decoder,
                                Drafter, DraftTree, Head, LanguageModel, Method,
                                NONE, Pair, Seen, Stats, Verdict)


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
  judge = functools.partial(_judge, pair, context, state, verify_keys,
                            pending)
  narrow = pair.drafter.narrow
  judged = judge(layout, tree) if narrow is None else jax.lax.cond(
      tree.valid[:, 1 + tree_lib.num_nodes(narrow):].any(),
      functools.partial(judge, layout), functools.partial(judge, narrow), tree)
  with jax.named_scope("commit"):
    after, count = token_buffer.commit(
        state, judged.tokens, judged.log_probs, judged.verdict.num_accepted + 1,
        context.eos_id)
    after = after.replace(
        target_cache=cache_lib.commit(state.target_cache, judged.block,
                                      judged.slots, count),
        stats=_count(state, pair.drafter,
                     draft_calls(pair.drafter, context.draft), tree,
                     judged.verdict, count))
    seen = Seen(tree, judged.logits, judged.block, judged.verdict,
                judged.tokens, count, pending)
  # A head reads here what was committed.
  with jax.named_scope("draft"):
    return pair.drafter.observe(context, state, after, seen), seen


class _Judged(NamedTuple):
  """What the target says of a tree.

  Attributes:
    logits: `[B, M, V]`.
    block: of M slots.
    verdict: the path that is accepted.
    tokens: `[B, D + 1]` int32, of the path and the one after it.
    log_probs: `[B, D + 1]` float32, the target's own.
    slots: `[B, D + 1]` int32, nodes of the path, known after the logits.
  """
  logits: Array
  block: Block
  verdict: Verdict
  tokens: Array
  log_probs: Array
  slots: Array


def _judge(pair: Pair, context: Context, state: DecodeState, keys, pending,
           layout, tree: DraftTree) -> _Judged:
  """Scores the nodes of a layout, the first ones of a tree, and verifies."""
  whole, shape = tree, pair.drafter.layout
  if layout is not shape:
    tree = _first_nodes(tree, layout)
  with jax.named_scope("target_forward"):
    score_tree = _scoring(pair.drafter, context.target, whole.tokens.shape[1])
    found = pair.drafter.score and pair.drafter.score(
        context, state, tree, pending)
    logits, block = found or score_tree(context, state.target_cache, tree,
                                        state.length)
  with jax.named_scope("verify"):
    verdict = jax.vmap(
        lambda *row: verifiers.walk(row[0], pair.verifier, layout, *row[1:],
                                    levels=tree_lib.depth(shape)))(
                                        keys, tree, logits, context.warper)
  with jax.named_scope("commit"):
    tokens = _path_tokens(tree, verdict)
    slots = cache_lib.await_logits(verdict.path, logits)
    log_probs = token_buffer.log_probs(buffers.take_along(
        logits, verdict.path[:, :, None], axis=1), tokens)
  more = tree_lib.depth(shape) - tree_lib.depth(layout)
  if not more:
    return _Judged(logits, block, verdict, tokens, log_probs, slots)
  pad = lambda x, **how: jnp.pad(x, ((0, 0), (0, more)), **how)
  nodes = whole.tokens.shape[1] - tree.tokens.shape[1]
  return _Judged(
      jnp.pad(logits, ((0, 0), (0, nodes), (0, 0))), block,
      verdict.replace(
          path=pad(verdict.path, mode="edge"),
          ranks=pad(verdict.ranks, constant_values=NONE),
          num_children=pad(verdict.num_children)),
      pad(tokens), pad(log_probs), pad(slots, mode="edge"))


def _first_nodes(tree: DraftTree, layout) -> DraftTree:
  """The first nodes of a tree, which are one of such a layout."""
  size = 1 + tree_lib.num_nodes(layout)
  first = lambda x, count: None if x is None else x[:, :count]
  return DraftTree(
      tree.tokens[:, :size], tree.parents[:, :size], tree.valid[:, :size],
      tree.mask[:, :size, :size],
      first(tree.log_probs, size - layout.widths[-1]),
      first(tree.noise_keys, 1 + tree_lib.depth(layout)))


def _scoring(drafter: Drafter, target: LanguageModel, slots):
  """Returns the function that scores the trees of a drafter."""
  if drafter.budget and target.packs:
    return functools.partial(score_valid, drafter.budget)
  return score_drafted if drafter.skips else functools.partial(
      score, slots=slots)


def score(context: Context, cache, tree: DraftTree, length, slots=None,
          packed=()):
  """One target call over the root and all nodes.

  Args:
    context: holds the target.
    cache: the target's, without the root.
    tree: what to score.
    length: `[B]` int32, committed tokens, the root included.
    slots: of the block, M or more; None for M.
    packed: one more argument of a target that packs; () for none.

  Returns:
    logits `[B, M, V]` and a block of so many slots.
  """
  size = tree.tokens.shape[1]
  slots = size if slots is None else slots
  block = cache_lib.init_block(cache, slots)
  positions = (length - 1)[:, None] + tree_lib.positions(tree)
  return context.target.forward(context.target_params, tree.tokens, positions,
                                cache, block, 0, jnp.pad(
                                    tree.mask, ((0, 0), (0, 0),
                                                (0, slots - size))), *packed)


def score_valid(budget, context: Context, cache, tree: DraftTree, length):
  """As `score`, of the roots and valid nodes alone, B + N tokens in one block.

  Linear layers compute these B + N tokens, whichever rows they are of; for
  attention, which reads a cache of each row, rows have M tokens again.
  """
  size = len(length) + budget(len(length))
  nodes, = jnp.nonzero(tree.valid.ravel(), size=size,
                       fill_value=tree.valid.size)
  return score(context, cache, tree, length,
               packed=(nodes.astype(jnp.int32),))


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
