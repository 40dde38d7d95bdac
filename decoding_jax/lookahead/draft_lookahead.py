"""Drafted lookaheads, and what the target says of them."""

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import buffers
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.speculation import expanders
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation import tree_decoder
from decoding_jax.speculation.drafters import language_model
from decoding_jax.types import (Array, Cache, Context, DecodeState, Expander,
                                DraftTree)


@flax.struct.dataclass
class Lookahead:
  """What was drafted after the text of each row, and what the target says.

  Attributes:
    tokens: `[B, n]` int32.
    size: `[B]` int32, how many of them there are: a lookahead ends where the
      text does.
    same: `[B]` int32, how many of them are verified.
    logits: `[B, n + 1, V]` float32, the target's after the text and after
      each of the tokens.
    following: `[B, n + 1]` int32, its most probable tokens.
    target_cache: holds the text; after its length, the tokens.
    draft_cache: the same; it may lack the last token.
    calls: `[B]` int32, forwards of the draft.
    nodes: `[B]` int32, drafted tokens that the target has scored.
    reward_calls: `[B]` int32, rewards that were compared.
  """
  tokens: Array
  size: Array
  same: Array
  logits: Array
  following: Array
  target_cache: Cache
  draft_cache: Cache
  calls: Array
  nodes: Array
  reward_calls: Array


def chain(steps: int, slack: float, late: int, context: Context,
          state: DecodeState, states) -> Lookahead:
  """Drafts tokens greedily and runs the target on them, in one forward.

  Args:
    steps: n, static.
    slack: nats below its most probable token at which the target takes one;
      static.
    late: tokens that the draft cache may lack, the newest included; static.
    context: holds the models.
    state: the target cache lacks the newest token.
    states: of the reward.

  Returns:
    The lookahead.
  """
  del states
  lacks = state.length - state.draft_cache.length
  logits, draft_cache = _catch_up(late, context, state, lacks)
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
  verified = valid & _agrees(context, slack, logits[:, :-1], tokens)
  size = valid.sum(axis=1, dtype=jnp.int32)
  return Lookahead(
      tokens, size,
      jnp.cumprod(verified, axis=1).sum(axis=1, dtype=jnp.int32), logits,
      following, target_cache,
      cache_lib.commit(draft_cache, path.block, slots, 0), 1 + path.calls,
      size, jnp.zeros_like(size))


def tree(drafter: Expander, slack: float, late: int, context: Context,
         state: DecodeState, states) -> Lookahead:
  """Drafts a tree, runs the target on it, and takes its best verified path.

  A path is verified where the target takes all of its tokens, and no child of
  its last one. The best is that of the greatest reward, of equal ones the
  longest, then the one that the target finds most probable. Without slack
  there is one, the target's own.

  Args:
    drafter: of the tree.
    slack: as of `chain`; so are the other arguments.
    late: static.
    context: holds models and reward.
    state: the target cache lacks the newest token.
    states: of the reward.

  Returns:
    The lookahead along that path.
  """
  layout = drafter.layout
  steps = tree_lib.depth(layout)
  lacks = state.length - state.draft_cache.length
  if late > 2:
    # The drafter goes on from a cache that lacks one token or two.
    _, cache = _catch_up(late - 1, context, state, lacks - 1)
    state = state.replace(draft_cache=cache)
  grown, draft_block = expanders.grow(
      state.keys, drafter, context.draft, context.draft_params,
      state.draft_cache, token_buffer.newest(state, 2), state.length,
      context.draft_warper)
  logits, block = tree_decoder.score(context, state.target_cache, grown,
                                     state.length)
  room = jnp.where(state.done, 0, state.limit - state.length)
  depths = jnp.asarray(tree_lib.depths(layout), jnp.int32)
  ends, log_probs = _verified(context, slack, grown, logits,
                              depths[None] <= room[:, None])
  # Of each node, its ancestor at each level, itself included.
  above = jnp.stack([
      level.start + jnp.argmax(grown.mask[:, :, level], axis=-1)
      for level in tree_lib.level_slices(layout)[1:]], axis=-1)
  tokens = jax.vmap(lambda tokens, above: tokens[above])(grown.tokens, above)
  ends_of_best = _greatest(ends, text_reward.of_paths(
      context, states, tokens,
      jnp.broadcast_to(jnp.arange(steps)[None] < depths[:, None],
                       tokens.shape)))
  ends_of_best = _greatest(ends_of_best, depths[None])
  node = jnp.argmax(jnp.where(ends_of_best, log_probs, -jnp.inf), axis=1)
  pick = lambda x: buffers.take_along(x, node[:, None, None], axis=1)[:, 0]
  tokens, same = pick(tokens), depths[node]
  path = jnp.pad(pick(above), ((0, 0), (1, 0)))
  logits = buffers.take_along(logits, path[:, :, None], axis=1)
  last = buffers.take_along(tokens, jnp.maximum(same - 1, 0)[:, None], axis=1)
  ended = (same > 0) & token_buffer.ends(last[:, 0], context.eos_id)
  compared = ends.sum(axis=1, dtype=jnp.int32)
  return Lookahead(
      tokens, jnp.where(ended, same, jnp.minimum(room, steps)), same, logits,
      greedy_rollout.best(context, logits),
      cache_lib.commit(state.target_cache, block, path, 1),
      language_model.commit(state, draft_block, path, jnp.ones_like(same)),
      steps + (lacks > 2).astype(jnp.int32),
      jnp.full_like(same, tree_lib.num_nodes(layout)),
      jnp.where(compared > 1, compared, 0))


def _verified(context: Context, slack, grown: DraftTree, logits, within):
  """Ends `[B, M]` of verified paths, and log-probabilities of all paths."""
  parents, mask = jnp.maximum(grown.parents, 0), grown.mask
  nodes = jnp.arange(parents.shape[1])
  is_root = nodes[None] == 0
  logits = buffers.take_along(logits, parents[:, :, None], axis=1)
  after_end = (parents > 0) & token_buffer.ends(
      buffers.take_along(grown.tokens, parents, axis=1), context.eos_id)
  takes = is_root | (_agrees(context, slack, logits, grown.tokens) &
                     grown.valid & within & ~after_end)
  verified = jnp.all(~mask | takes[:, None], axis=-1)
  is_child = grown.parents[:, :, None] == nodes[None, None]
  goes_on = (is_child & verified[:, :, None]).any(axis=1)
  log_probs = jnp.where(is_root, 0, token_buffer.log_probs(
      logits, grown.tokens))
  return verified & ~goes_on, jnp.where(mask, log_probs[:, None], 0).sum(-1)


def _greatest(rows, scores):
  """Of those set in `rows [B, M]`, those with the greatest score."""
  scores = jnp.where(rows, scores.astype(jnp.float32), -jnp.inf)
  return rows & (scores == scores.max(axis=1, keepdims=True))


def _catch_up(late, context: Context, state: DecodeState, count):
  """Runs the draft on the text after its cache; logits and cache."""
  columns = state.draft_cache.length[:, None] + jnp.arange(late)[None]
  newest = buffers.take_along(
      state.tokens, jnp.minimum(columns, state.length[:, None] - 1), axis=1)
  return greedy_rollout.extend(context.draft, context.draft_params,
                               state.draft_cache, newest, count)


def _agrees(context: Context, slack, logits, tokens):
  """Whether the target takes `tokens [B, T]`, given `logits [B, T, V]`."""
  logits = greedy_rollout.allowed(context, logits)
  chosen = buffers.take_along(logits, tokens[..., None], axis=-1)[..., 0]
  return (tokens == sampling.most_probable(logits)) | (
      logits.max(axis=-1) - chosen < slack)
