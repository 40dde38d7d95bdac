"""Draft lookaheads, chains and trees, verified by the target."""

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import buffers, vocabulary
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.speculation import expanders, scoring
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.drafters import language_model
from decoding_jax.types import (Array, Cache, Context, DecodeState, DraftTree,
                                Expander)


@flax.struct.dataclass
class Lookahead:
  """Draft tokens after the text of each row, scored by the target."""
  tokens: Array  # `[B, n]` int32
  # `[B]` int32, how many of them there are: a lookahead ends where the text
  # does.
  size: Array
  num_verified: Array  # `[B]` int32, how many of them the target accepts
  # `[B, n + 1, V]` float32, the target's after the text and after each of the
  # tokens.
  logits: Array
  following: Array  # `[B, n + 1]` int32, its most probable tokens
  target_cache: Cache  # holds the text; after its length, the tokens
  draft_cache: Cache  # the same; it may lack the last token
  calls: Array  # `[B]` int32, forwards of the draft
  nodes: Array  # `[B]` int32, drafted tokens that the target has scored
  reward_calls: Array  # `[B]` int32, rewards that were compared


def chain(max_draft_lag: int, context: Context, state: DecodeState,
          reward_states, *, steps: int, slack: float = 0.0) -> Lookahead:
  """Drafts n = `steps` tokens greedily, and runs the target on them once. The
  target cache lacks the newest token, the draft cache at most `max_draft_lag`.
  The target accepts its most probable token, and those less than `slack` nats
  below it. `reward_states` is unused: `chain` and `tree` share a signature."""
  del reward_states
  lacks = state.length - state.draft_cache.length
  logits, draft_cache = greedy_rollout.catch_up(max_draft_lag, context, state,
                                                lacks)
  first = greedy_rollout.best(context, buffers.take_along(
      logits, lacks[:, None, None] - 1, axis=1))
  room = jnp.where(state.done, 0, state.limit - state.length)
  path = greedy_rollout.roll_out(
      context, (context.draft, context.draft_params, draft_cache), first,
      jnp.minimum(room, steps), max(steps - 1, 1))
  slots = jnp.broadcast_to(jnp.arange(max(steps - 1, 1)),
                           (len(room), max(steps - 1, 1)))
  tokens, valid = path.tokens[:, 0, :steps], path.valid[:, 0, :steps]
  logits, target_cache = greedy_rollout.extend(
      context.target, context.target_params, state.target_cache,
      jnp.concatenate([token_buffer.newest(state, 1), tokens], axis=1), 1)
  following = greedy_rollout.best(context, logits)
  verified = valid & _accepts(context, slack, logits[:, :-1], tokens)
  size = valid.sum(axis=1, dtype=jnp.int32)
  return Lookahead(
      tokens, size,
      jnp.cumprod(verified, axis=1).sum(axis=1, dtype=jnp.int32), logits,
      following, target_cache,
      cache_lib.commit(draft_cache, path.block, slots, 0), 1 + path.calls,
      size, jnp.zeros_like(size))


def tree(max_draft_lag: int, context: Context, state: DecodeState,
         reward_states, *, expander: Expander, slack: float = 0.0) -> Lookahead:
  """Drafts a tree, runs the target on it, and takes the best verified path: the
  one with the greatest reward, then the longest, then the most probable. The
  target accepts all tokens of a verified path, as in `chain`, and no child of
  the last. Without slack there is one path, the target's own."""
  layout = expander.layout
  steps = tree_lib.depth(layout)
  lacks = state.length - state.draft_cache.length
  if max_draft_lag > 2:
    # The drafter goes on from a cache that lacks one token or two.
    _, cache = greedy_rollout.catch_up(max_draft_lag - 1, context, state,
                                       lacks - 1)
    state = state.replace(draft_cache=cache)
  grown, draft_block = expanders.grow(
      state.keys, expander, context.draft, context.draft_params,
      state.draft_cache, token_buffer.newest(state, 2), state.length,
      context.draft_warper)
  logits, block = scoring.all_nodes(context, state, grown)
  room = jnp.where(state.done, 0, state.limit - state.length)
  node, tokens, ancestors, compared = _best_path(
      context, slack, layout, grown, logits, room, reward_states)
  num_verified = jnp.asarray(tree_lib.depths(layout), jnp.int32)[node]
  path = jnp.pad(ancestors, ((0, 0), (1, 0)))
  logits = buffers.take_along(logits, path[:, :, None], axis=1)
  last = buffers.take_along(
      tokens, jnp.maximum(num_verified - 1, 0)[:, None], axis=1)
  ended = (num_verified > 0) & token_buffer.ends(last[:, 0], context.eos_id)
  return Lookahead(
      tokens, jnp.where(ended, num_verified, jnp.minimum(room, steps)),
      num_verified, logits, greedy_rollout.best(context, logits),
      cache_lib.commit(state.target_cache, block, path, 1),
      language_model.commit(state, draft_block, path,
                            jnp.ones_like(num_verified)),
      steps + (lacks > 2).astype(jnp.int32),
      jnp.full_like(num_verified, tree_lib.num_nodes(layout)),
      jnp.where(compared > 1, compared, 0))


def _best_path(context: Context, slack, layout, grown: DraftTree, logits, room,
               reward_states):
  """Picks the best verified path of each row. Returns its last node `[B]`,
  tokens and nodes `[B, n]`, and how many paths `[B]` were verified."""
  depths = jnp.asarray(tree_lib.depths(layout), jnp.int32)
  ends, log_probs = _verified(context, slack, grown, logits,
                              depths[None] <= room[:, None])
  # The ancestor of each node at each level, itself included.
  ancestors = jnp.stack([
      level.start + jnp.argmax(grown.mask[:, :, level], axis=-1)
      for level in tree_lib.level_slices(layout)[1:]], axis=-1)
  tokens = jax.vmap(lambda tokens, nodes: tokens[nodes])(grown.tokens,
                                                         ancestors)
  order = jnp.arange(tree_lib.depth(layout))[None]
  best = _greatest(ends, text_reward.of_paths(
      context, reward_states, tokens,
      jnp.broadcast_to(order < depths[:, None], tokens.shape)))
  best = _greatest(best, depths[None])
  node = jnp.argmax(jnp.where(best, log_probs, -jnp.inf), axis=1)
  pick = lambda x: buffers.take_along(x, node[:, None, None], axis=1)[:, 0]
  return node, pick(tokens), pick(ancestors), ends.sum(axis=1, dtype=jnp.int32)


def _verified(context: Context, slack, grown: DraftTree, logits, within):
  """Returns last nodes of verified paths, log-probs of all, `[B, M]`."""
  parents, mask = jnp.maximum(grown.parents, 0), grown.mask
  nodes = jnp.arange(parents.shape[1])
  is_root = nodes[None] == 0
  logits = buffers.take_along(logits, parents[:, :, None], axis=1)
  after_end = (parents > 0) & token_buffer.ends(
      buffers.take_along(grown.tokens, parents, axis=1), context.eos_id)
  accepted = is_root | (_accepts(context, slack, logits, grown.tokens) &
                        grown.valid & within & ~after_end)
  verified = jnp.all(~mask | accepted[:, None], axis=-1)
  is_child = grown.parents[:, :, None] == nodes[None, None]
  goes_on = (is_child & verified[:, :, None]).any(axis=1)
  log_probs = jnp.where(is_root, 0, token_buffer.log_probs(
      logits, grown.tokens))
  return verified & ~goes_on, jnp.where(mask, log_probs[:, None], 0).sum(-1)


def _greatest(rows, scores):
  """Returns `rows [B, M]` where the score is the greatest of its row."""
  scores = jnp.where(rows, scores.astype(jnp.float32), -jnp.inf)
  return rows & (scores == scores.max(axis=1, keepdims=True))


def _accepts(context: Context, slack, logits, tokens):
  """Tells whether the target accepts `tokens [B, T]`, by its `logits`."""
  logits = greedy_rollout.allowed(context, logits)
  chosen = vocabulary.take(logits, tokens[..., None])[..., 0]
  return (tokens == sampling.most_probable(logits)) | (
      logits.max(axis=-1) - chosen < slack)
