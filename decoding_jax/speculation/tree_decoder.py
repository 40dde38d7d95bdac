"""The loop's step for draft trees: propose, score, verify, commit, observe."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers, random
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.speculation import scoring, tree as tree_lib, verifiers
from decoding_jax.speculation.drafters import language_model
from decoding_jax.types import (Context, DecodeState, Decoder, Drafter,
                                DraftTree, Method, NONE, Pair, Seen, Stats,
                                Verdict)


def decoder_of(method: Method, greedy: bool) -> Decoder | None:
  """Returns the decoder of a method at a temperature; None if it has none."""
  return as_decoder(method.greedy if greedy else method.sampled)


def decoders(method: Method) -> list[Decoder]:
  """Returns the decoders of a method, at temperatures above 0 and at 0."""
  both = (decoder_of(method, greedy) for greedy in (False, True))
  return [decoder for decoder in both if decoder is not None]


def as_decoder(program: Pair | Decoder | None) -> Decoder | None:
  """Returns the decoder that a pair stands for; a decoder unchanged."""
  return of_pair(program) if isinstance(program, Pair) else program


@functools.lru_cache(maxsize=None)
def of_pair(pair: Pair) -> Decoder:
  """Returns the decoder that drafts, scores and verifies a tree a step."""
  layout = pair.drafter.layout
  return Decoder(functools.partial(_init, pair),
                 functools.partial(_step, pair),
                 # A commit writes the whole path and the late token, counted
                 # or not.
                 max_slots_ahead=tree_lib.depth(layout) + 1,
                 max_samples_per_node=max(tree_lib.max_branching(layout), 1),
                 needs_draft=pair.drafter.calls > 0,
                 takes_head=True,  # Unless `Drafter.draft_calls` refuses it.
                 step_with_tree=functools.partial(_step_with_tree, pair))


def _init(pair: Pair, context: Context, state: DecodeState) -> DecodeState:
  layout = pair.drafter.layout
  siblings = (tree_lib.max_branching(layout),)
  return pair.drafter.init(context, state.replace(stats=Stats.zeros(
      len(state.length), tree_lib.depth(layout), tested_by_rank=siblings,
      accepted_by_rank=siblings)))


def _step(pair: Pair, context: Context, state: DecodeState) -> DecodeState:
  return _step_with_tree(pair, context, state)[0]


def _step_with_tree(pair: Pair, context: Context,
                    state: DecodeState) -> tuple[DecodeState, Seen]:
  """Drafts a tree, scores and verifies it, commits a path, observes."""
  drafter = pair.drafter
  # By the row's own count of steps: it draws the same in any batch or queue.
  keys = jax.vmap(random.fold_in)(state.keys, state.step)
  draft_keys, verify_keys = jax.vmap(random.split, out_axes=1)(keys)
  # Profiles tell the parts of a step by the names of these scopes.
  with jax.named_scope("draft"):
    tree, pending = drafter.propose(draft_keys, context, state)
  with jax.named_scope("target_forward"):
    score = drafter.score or scoring.all_nodes
    logits, block = score(context, state, tree, pending)
  with jax.named_scope("verify"):
    walk = lambda key, *row: verifiers.walk(key, pair.verifier, drafter.layout,
                                            *row)
    verdict = jax.vmap(walk)(verify_keys, tree, logits, context.warper)
  with jax.named_scope("commit"):
    tokens = _path_tokens(tree, verdict)
    # Before the logits are known XLA could commit, and then have the forward
    # read a copy of the whole cache.
    slots = cache_lib.await_logits(verdict.path, logits)
    log_probs = token_buffer.log_probs(buffers.take_along(
        logits, verdict.path[:, :, None], axis=1), tokens)
    # The end of the text or of the budget may cut the path.
    after, count = token_buffer.commit(state, tokens, log_probs,
                                       verdict.num_accepted + 1, context.eos_id)
    after = after.replace(
        target_cache=cache_lib.commit(state.target_cache, block, slots, count),
        stats=_count(pair.drafter, context, state, verdict, count))
  seen = Seen(tree, logits, block, verdict, tokens, count, pending)
  # A head reads here what was committed.
  with jax.named_scope("draft"):
    return drafter.observe(context, state, after, seen), seen


def _path_tokens(tree: DraftTree, verdict: Verdict):
  """Returns `[B, D + 1]`, the accepted tokens and the one after them."""
  order = jnp.arange(verdict.path.shape[1])[None]
  accepted = buffers.take_along(tree.tokens, verdict.path, axis=1)
  return jnp.where(order == verdict.num_accepted[:, None],
                   verdict.token[:, None], jnp.roll(accepted, -1, axis=1))


def count_call(state: DecodeState, accepted, emitted, *, draft_calls, nodes,
               **extra) -> Stats:
  """Counts a target call, in rows that are not done. `accepted` drafts and
  `emitted` tokens are `[B]`; others one number or `[B]`, or `[B, ...]` as the
  count in `Stats.extra` of that name."""
  runs = (~state.done).astype(jnp.int32)
  levels = jnp.arange(state.stats.accepted_by_depth.shape[1])[None]
  by_depth = runs[:, None] * (levels == accepted[:, None]).astype(jnp.int32)
  of_rows = lambda x: jnp.expand_dims(runs, range(1, max(jnp.ndim(x), 1))) * x
  return state.stats.add(
      target_calls=runs, draft_calls=runs * draft_calls, emitted=emitted,
      nodes=runs * nodes, accepted_by_depth=by_depth,
      **{name: of_rows(x) for name, x in extra.items()})


def _count(drafter: Drafter, context: Context, state: DecodeState,
           verdict: Verdict, emitted) -> Stats:
  ranks = jnp.arange(tree_lib.max_branching(drafter.layout))[None, None]
  rank = verdict.ranks[:, :, None]
  # Siblings are tested in their order, up to the one that is accepted.
  tested = (ranks < verdict.num_children[:, :, None]) & (
      (ranks <= rank) | (rank == NONE))
  by_rank = lambda hits: hits.sum(axis=1, dtype=jnp.int32)
  return count_call(
      state, verdict.num_accepted, emitted,
      draft_calls=language_model.draft_calls(drafter, context.draft),
      nodes=tree_lib.num_nodes(drafter.layout), tested_by_rank=by_rank(tested),
      accepted_by_rank=by_rank(ranks == rank))
