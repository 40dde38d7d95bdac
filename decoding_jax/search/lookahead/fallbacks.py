"""CDSL's second and third attempts: the target continues, or a CDLH step.

They run if any row needs them; their cache writes leave other rows intact.
"""

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.search.lookahead import candidates
from decoding_jax.search.lookahead.draft_lookahead import Lookahead
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.types import Array, Cache, Context, DecodeState


@flax.struct.dataclass
class TargetContinuation:
  """Verified tokens of a lookahead, continued by the target."""
  tokens: Array  # `[B, n + 1]` int32, the verified ones first
  # `[B, n + 1]` float32, the target's own, from the second token after the
  # verified ones on.
  log_probs: Array
  count: Array  # `[B]` int32, how many tokens there are
  passed: Array  # `[B]` bool, whether their reward passes
  # The target's; where they passed, it holds them after its length.
  cache: Cache
  calls: Array  # `[B]` int32, forwards of the target
  reward_calls: Array  # `[B]` int32


@flax.struct.dataclass
class SearchResult:
  """The result of a CDLH step in rows that need one."""
  rows: Array  # `[B]` bool, the rows that searched
  tokens: Array  # `[B, n + 1]` int32, the chosen token and its roll-out
  log_probs: Array  # `[B, n + 1]` float32, the target's own where it rolls out
  count: Array  # `[B]` int32, how many of them are committed
  calls: Array  # `[B]` int32, forwards of the model that rolls out
  cache: Cache  # the target's; it holds what is committed after its length


def continue_draft(passes, context: Context, state: DecodeState,
                   lookahead: Lookahead, rows,
                   reward_states) -> TargetContinuation:
  """Rolls out the target from the first rejected token, in some `rows`."""
  verified, steps = lookahead.num_verified[:, None], lookahead.tokens.shape[1]
  order = jnp.arange(steps + 1)[None]
  start = state.length + lookahead.num_verified
  cache = lookahead.target_cache
  room = jnp.minimum(steps + 1 - lookahead.num_verified, state.limit - start)
  shifted = lambda x: buffers.take_along(
      x[:, 0], jnp.maximum(order - verified, 0), axis=1)

  def branch():
    path = greedy_rollout.roll_out(
        context, (context.target, context.target_params,
                  cache.replace(length=start)),
        buffers.take_along(lookahead.following, verified, axis=1),
        jnp.where(rows, room, 0), steps)
    tokens = jnp.where(order < verified, pad_one(lookahead.tokens),
                       shifted(path.tokens))
    count = lookahead.num_verified + path.valid[:, 0].sum(
        axis=1, dtype=jnp.int32)
    passed = rows & passes(
        text_reward.value_after(context, reward_states, tokens, count))
    return (tokens, shifted(path.log_probs), count, passed, path.block,
            path.calls)

  *path, passed, block, calls = _if_any(rows, branch)
  # Elsewhere the roll-out is written after the lookahead, whose slots may still
  # be committed.
  cache = cache.replace(length=jnp.where(passed, start, state.length + steps))
  slots = jnp.broadcast_to(order[:, :-1], lookahead.tokens.shape)
  return TargetContinuation(
      *path, passed, cache_lib.commit(cache, block, slots, 0), calls,
      rows.astype(jnp.int32))


def no_continuation(lookahead: Lookahead) -> TargetContinuation:
  """Returns a continuation that passes in no row."""
  tokens = pad_one(lookahead.tokens)
  none = jnp.zeros_like(lookahead.num_verified)
  return TargetContinuation(
      tokens, jnp.zeros(tokens.shape, jnp.float32), none, none > 0,
      lookahead.target_cache, none, none)


def search(rows, passes, commits_rollout: bool, context: Context,
           options: candidates.SearchOptions, state: DecodeState,
           lookahead: Lookahead, continuation: TargetContinuation,
           reward_states) -> SearchResult:
  """Chooses one token by a CDLH step in `rows [B]`; elsewhere count is 0. The
  first logits of `lookahead` follow the text, and the cache of `continuation`
  holds it. With `commits_rollout` the roll-out is committed too, where its
  reward `passes`."""
  # The cache of `lookahead` would have to be kept as a second copy.
  cache = continuation.cache.replace(length=state.length)

  def branch():
    choice = candidates.choose(
        context, options, (cache, lookahead.draft_cache),
        lookahead.logits[:, 0], reward_states,
        jnp.where(rows, state.limit - state.length, 0))
    pick = lambda x: buffers.take_along(
        x, choice.index[:, None, None], axis=1)[:, 0]
    paths, whole = choice.paths, rows & commits_rollout & passes(choice.reward)
    tokens, log_probs = pick(paths.tokens), pick(paths.log_probs)
    first = token_buffer.log_probs(lookahead.logits[:, 0], choice.token)
    count = jnp.where(
        whole, pick(paths.valid).sum(axis=1, dtype=jnp.int32),
        rows.astype(jnp.int32))
    chosen = (tokens, log_probs.at[:, 0].set(first), count, paths.calls)
    return (*chosen, (choice.index, paths.block) if commits_rollout else ())

  *chosen, winner = _if_any(rows, branch)
  cache = continuation.cache
  if commits_rollout:
    index, block = winner
    # Elsewhere it is written after the slots that may still be committed.
    cache = cache.replace(length=state.length + jnp.where(
        rows, 0, options.steps))
    slots = options.num_candidates * jnp.arange(options.steps)[None]
    cache = cache_lib.commit(cache, block, slots + index[:, None], 0)
  return SearchResult(rows, *chosen, cache)


def pad_one(tokens):
  """Pads `[B, n]` tokens to `[B, n + 1]`."""
  return jnp.pad(tokens, ((0, 0), (0, 1)))


def _if_any(rows, branch):
  """Returns `branch()` if any of the rows is set, else zeros."""
  zeros = lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                               jax.eval_shape(branch))
  return jax.lax.cond(rows.any(), branch, zeros)
