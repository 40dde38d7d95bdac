"""Generation: prefill, then draft, score, verify and commit in one loop."""

import functools
from typing import Optional

import jax
import jax.numpy as jnp

from decoding_jax import cache as cache_lib
from decoding_jax import checks, draft as draft_lib, sampling as sampling_lib
from decoding_jax import tree as tree_lib, verify
from decoding_jax.types import (Cache, DecodeState, DraftTree, Generation,
                                LanguageModel, Method, NONE, PAD, Pair, Params,
                                Stats, Verdict)


def generate(key, prompts, prompt_lengths, *, method: Method,
             target: LanguageModel, target_params: Params,
             draft: Optional[LanguageModel] = None,
             draft_params: Params = None, max_new_tokens: int = 128,
             sampling: sampling_lib.Sampling = sampling_lib.Sampling(),
             draft_sampling: Optional[sampling_lib.Sampling] = None,
             eos_id: Optional[int] = None) -> Generation:
  """Continues prompts; the continuations have the law of the target.

  One compiled program, which serves any call with the same method, models,
  `max_new_tokens`, top-k and shapes. To be called inside `jit` or outside.

  Args:
    key: a random key; row i uses `fold_in(key, i)`. Or `[B]` keys, one a row:
      a row's tokens depend on its own key and prompt alone.
    prompts: `[B, P]` int32, right-padded.
    prompt_lengths: `[B]` int32, in 1..P.
    method: from `decoding_jax.methods`, or one's own.
    target: the model whose law is kept.
    target_params: its parameters.
    draft: the model that drafts; None if the method needs none.
    draft_params: its parameters.
    max_new_tokens: most tokens behind each prompt.
    sampling: defines the law that is kept. At temperature 0 the output is the
      target's greedy output.
    draft_sampling: the same for the drafter; None for the same warp. Not used
      at temperature 0, where drafts are the most probable tokens.
    eos_id: a row ends behind its first such token; None for none.

  Returns:
    A `Generation`.

  Raises:
    ValueError: for arguments that do not fit, before anything is compiled.
  """
  prompts, prompt_lengths = jnp.asarray(prompts), jnp.asarray(prompt_lengths)
  checks.check_prompts(prompts, prompt_lengths, target.vocab_size)
  checks.check_models(method, target, draft)
  checks.check_budget(prompts.shape[1], max_new_tokens, target, draft)
  checks.check_eos(eos_id, target.vocab_size)
  checks.check_axes(prompts, target_params, draft_params)
  prompts, prompt_lengths = (
      x.astype(jnp.int32) for x in (prompts, prompt_lengths))
  batch, vocab_size = len(prompts), target.vocab_size
  warp = sampling_lib.warp(sampling, batch, vocab_size)
  draft_warp = sampling_lib.untempered(warp) if warp.greedy else (
      sampling_lib.warp(draft_sampling or sampling, batch, vocab_size,
                        "draft_sampling"))
  pair = method.greedy if warp.greedy else method.sampled
  return _generate(
      pair, target, draft, max_new_tokens, _row_keys(key, batch), prompts,
      prompt_lengths, target_params, draft_params, warp, draft_warp,
      jnp.int32(NONE if eos_id is None else eos_id))


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _generate(pair, target, draft, max_new_tokens, keys, prompts, lengths,
              target_params, draft_params, warp, draft_warp, eos_id):
  state = _init(pair, target, draft, max_new_tokens, keys, prompts, lengths,
                target_params, draft_params)
  step = functools.partial(_step, pair, target, draft, target_params,
                           draft_params, warp, draft_warp, eos_id)
  state = jax.lax.while_loop(lambda s: ~s.done.all(), step, state)
  return Generation(state.tokens, state.length, state.log_probs, state.stats)


def _init(pair, target, draft, max_new_tokens, keys, prompts, lengths,
          target_params, draft_params) -> DecodeState:
  """Prefills the caches with all of each prompt but its last token."""
  batch, width = prompts.shape
  depth = tree_lib.depth(pair.drafter.layout)
  # A commit writes the whole path and the late token, counted or not.
  capacity = width + max_new_tokens + depth + 1
  in_prompt = jnp.arange(width) < lengths[:, None]
  fill = functools.partial(_prefill, jnp.where(in_prompt, prompts, 0), lengths,
                           capacity)
  tokens = jnp.full((batch, width + max_new_tokens), PAD, jnp.int32)
  tokens = tokens.at[:, :width].set(jnp.where(in_prompt, prompts, PAD))
  return DecodeState(
      keys=keys, step=jnp.int32(0), tokens=tokens,
      log_probs=jnp.zeros(tokens.shape), length=lengths,
      limit=lengths + max_new_tokens, done=jnp.zeros(batch, bool),
      target_cache=fill(target, target_params),
      draft_cache=fill(draft, draft_params) if depth else None,
      stats=_no_stats(batch, pair))


def _prefill(prompts, lengths, capacity, model, params) -> Cache:
  batch, width = prompts.shape
  cache = model.init_cache(batch, capacity)
  if width == 1:
    return cache
  nothing, size = model.init_cache(batch, 0), width - 1
  order = jnp.broadcast_to(jnp.arange(size), (batch, size))
  causal = order[:, :, None] >= order[:, None]
  _, block = model.forward(params, prompts[:, :size], order, nothing,
                           cache_lib.init_block(cache, size), 0, causal)
  return cache_lib.commit(cache, block, order, lengths - 1)


def _step(pair, target, draft, target_params, draft_params, warp, draft_warp,
          eos_id, state: DecodeState) -> DecodeState:
  """One draft, one target call, one commit."""
  layout = pair.drafter.layout
  keys = jax.vmap(jax.random.fold_in, (0, None))(state.keys, state.step)
  draft_keys, verify_keys = jax.vmap(jax.random.split, out_axes=1)(keys)
  newest = jnp.maximum(state.length[:, None] - jnp.array([2, 1]), 0)
  newest = jnp.take_along_axis(state.tokens, newest, axis=1)
  tree, draft_block = draft_lib.grow(
      draft_keys, pair.drafter, draft, draft_params, state.draft_cache, newest,
      state.length, draft_warp)
  logits, target_block = _score(layout, target, target_params,
                                state.target_cache, tree, state.length)
  verdict = jax.vmap(
      lambda *row: verify.walk(row[0], pair.verifier, layout, *row[1:]))(
          verify_keys, tree, logits, warp)
  tokens, count, done = _emit(state, tree, verdict, eos_id)
  return DecodeState(
      keys=state.keys, step=state.step + 1,
      tokens=_append(state.tokens, state.length, tokens, count),
      log_probs=_append(state.log_probs, state.length,
                        _log_probs(logits, verdict.path, tokens), count),
      length=state.length + count, limit=state.limit, done=done,
      target_cache=cache_lib.commit(state.target_cache, target_block,
                                    verdict.path, count),
      draft_cache=_commit_draft(state, draft_block, verdict.path, count),
      stats=_count(state, layout, verdict, count))


def _score(layout, target, params, cache, tree: DraftTree, length):
  """One target call over the root and all nodes."""
  block = cache_lib.init_block(cache, tree.tokens.shape[1])
  positions = (length - 1)[:, None] + tree_lib.depths(layout)
  return target.forward(params, tree.tokens, positions, cache, block, 0,
                        tree.mask)


def _emit(state: DecodeState, tree: DraftTree, verdict: Verdict, eos_id):
  """Cuts what was accepted at the end of the text and of the budget.

  Returns:
    tokens `[B, D + 1]`, how many of them count `[B]`, and done `[B]`.
  """
  order = jnp.arange(verdict.path.shape[1])
  accepted = jnp.take_along_axis(tree.tokens, verdict.path, axis=1)
  tokens = jnp.where(order == verdict.num_accepted[:, None],
                     verdict.token[:, None], jnp.roll(accepted, -1, axis=1))
  count = jnp.minimum(verdict.num_accepted + 1, state.limit - state.length)
  ends = (tokens == eos_id) & (order < count[:, None])
  ended = ends.any(axis=1)
  count = jnp.where(ended, jnp.argmax(ends, axis=1) + 1, count)
  count = jnp.where(state.done, 0, count).astype(jnp.int32)
  done = state.done | ended | (state.length + count == state.limit)
  return tokens, count, done


def _append(buffer, length, values, count):
  """Writes the first `count` values of each row behind its length."""
  order = jnp.arange(values.shape[1])
  columns = jnp.where(order < count[:, None], length[:, None] + order,
                      buffer.shape[1])
  rows = jnp.arange(len(buffer))[:, None]
  return buffer.at[rows, columns].set(values, mode="drop")


def _log_probs(logits, path, tokens):
  """`[B, D + 1]`, the target's own log-probabilities along a path."""
  logits = jnp.take_along_axis(logits, path[:, :, None], axis=1)
  chosen = jnp.take_along_axis(logits, tokens[:, :, None], axis=2)[..., 0]
  return chosen - jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)


def _commit_draft(state: DecodeState, block, path, count):
  """Commits the late token, if there is one, the root, and inner nodes.

  Nodes of the last level are not in the block: where one is accepted, the
  draft cache falls one token behind, which the next root level makes good.
  """
  if block is None:
    return None
  depth = path.shape[1] - 1
  late = state.length - 1 - state.draft_cache.length
  slots = jnp.concatenate([jnp.zeros_like(path[:, :1]), 1 + path[:, :-1]], 1)
  order = jnp.arange(depth + 1) + 1 - late[:, None]
  slots = jnp.take_along_axis(slots, jnp.minimum(order, depth), axis=1)
  count = jnp.where(count > 0, late + jnp.minimum(count, depth), 0)
  return cache_lib.commit(state.draft_cache, block, slots, count)


def _no_stats(batch, pair: Pair) -> Stats:
  layout = pair.drafter.layout
  zeros = jnp.zeros(batch, jnp.int32)
  ranks = jnp.zeros((batch, tree_lib.max_branching(layout)), jnp.int32)
  depths = jnp.zeros((batch, tree_lib.depth(layout) + 1), jnp.int32)
  return Stats(zeros, zeros, zeros, zeros, depths,
               {"tested_by_rank": ranks, "accepted_by_rank": ranks})


def _count(state: DecodeState, layout, verdict: Verdict, count) -> Stats:
  stats, runs = state.stats, (~state.done).astype(jnp.int32)
  ranks, rank = jnp.arange(tree_lib.max_branching(layout)), (
      verdict.ranks[:, :, None])
  tested = (ranks < verdict.num_children[:, :, None]) & (
      (ranks <= rank) | (rank == NONE))
  depths = jnp.arange(tree_lib.depth(layout) + 1)
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


def _row_keys(key, batch):
  """`[B]` typed keys from a key, or from a key a row."""
  key = jnp.asarray(key)
  if not jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
    key = jax.random.wrap_key_data(key)
  if key.ndim == 0:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(batch))
  if key.shape != (batch,):
    raise ValueError(f"key has shape {key.shape}: one key, or one for each of "
                     f"{batch} rows is needed.")
  return key
