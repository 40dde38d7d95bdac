"""The decoder of CDSL: one iteration drafts, verifies, tests and commits."""

import functools

import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.search.lookahead import candidates, cdsl_rules, fallbacks
from decoding_jax.search.lookahead.draft_lookahead import Lookahead
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import token_buffer
from decoding_jax.types import Context, DecodeState, Decoder, Stats

# S1 to S4; see `methods.cdsl`.
_NUM_STATES = 4


def decoder(options: candidates.SearchOptions,
            rules: cdsl_rules.Rules) -> Decoder:
  """Makes the decoder of CDSL, for temperature 0. The `steps` of `options` are
  n, the drafted tokens. Its `carry` are the states of the reward and its values
  `[B]`; `stats.extra` has `states [B, 4]` and `reward_calls [B]`."""
  # The draft has not seen what only the target has said.
  lags = rules.low_acceptance == "continue" or rules.commits_rollout
  max_draft_lag = options.steps + 1 if lags else 2
  return Decoder(
      functools.partial(_init, options),
      functools.partial(_step, options, rules, max_draft_lag),
      # The draft's lookahead, and after it the target's continuation.
      max_slots_ahead=2 * options.steps + 1,
      max_samples_per_node=max(rules.max_samples_per_node,
                               options.num_candidates),
      needs_draft=True, needs_reward=True)


def _init(options, context: Context, state: DecodeState) -> DecodeState:
  reward_states = text_reward.init(context)
  return state.replace(
      carry=(reward_states, text_reward.value(context, reward_states)),
      stats=Stats.zeros(len(state.length), options.steps,
                        states=(_NUM_STATES,), reward_calls=()))


def _step(options, rules: cdsl_rules.Rules, max_draft_lag, context: Context,
          state: DecodeState) -> DecodeState:
  """Runs one iteration, which ends in S1, S2, S3 or S4 in each row."""
  running, (reward_states, value) = ~state.done, state.carry
  passes = functools.partial(rules.passes, context.reward.maximum, value)
  lookahead = rules.draft(max_draft_lag, context, state, reward_states)
  # How many of 0, 1, ..., n drafted tokens must be verified
  required = jnp.array([sum(verified / max(size, 1) < rules.acceptance_threshold
                            for verified in range(size + 1))
                        for size in range(options.steps + 1)])
  high = running & (lookahead.num_verified >= required[lookahead.size])
  kept = jnp.where(high & rules.commits_draft, lookahead.size,
                   lookahead.num_verified)
  s1 = high & passes(text_reward.value_after(context, reward_states,
                                             lookahead.tokens, kept))
  continues, committed_if = cdsl_rules.LOW_ACCEPTANCE[rules.low_acceptance]
  tested, s3, test = high, running & ~high, passes
  if committed_if is not None:
    drafted = text_reward.value_after(context, reward_states, lookahead.tokens,
                                      lookahead.size)
    tested, s3 = running, s3 & (committed_if == passes(drafted))
    test = lambda after: after >= drafted
  continuation = fallbacks.no_continuation(lookahead)
  if continues:
    continuation = fallbacks.continue_draft(
        test, context, state, lookahead, s3, reward_states)
    if committed_if:
      continuation = continuation.replace(count=lookahead.num_verified + 1)
  if continues or committed_if is None:
    s3 = continuation.passed
  result = fallbacks.search(
      running & ~(s1 | s3), passes, rules.commits_rollout,
      context, options, state, lookahead, continuation, reward_states)
  tokens, log_probs, count, right = _merge(lookahead, kept, continuation,
                                           result)
  compared = jnp.zeros_like(count)
  if rules.only_if_gain:
    compared, _ = token_buffer.cut(state, tokens, count, context.eos_id)
    count = text_reward.tokens_until_gain(context, reward_states, value, tokens,
                                          compared)
  new, count = token_buffer.commit(state, tokens, log_probs, count,
                                   context.eos_id)
  reward_states = text_reward.advance(
      context, reward_states, tokens,
      jnp.arange(options.steps + 1)[None] < count[:, None])
  ended_in = jnp.where(high, jnp.where(s1, 0, 1), jnp.where(s3, 2, 3))
  return new.replace(
      # The newest token is in no cache, and the draft has not been run on the
      # last token that it drafted.
      target_cache=cache_lib.rewind(result.cache, new.length - 1),
      draft_cache=cache_lib.rewind(lookahead.draft_cache, jnp.minimum(
          state.length + jnp.minimum(right, options.steps - 1),
          new.length - 1)),
      carry=(reward_states, text_reward.value(context, reward_states)),
      stats=_count(state.stats, options, lookahead, continuation, result,
                   compared, tested, count, running, ended_in))


def _merge(lookahead: Lookahead, kept, continuation, result):
  """Selects what rows commit: tokens, log-probs, counts, drafted among them."""
  order = jnp.arange(continuation.tokens.shape[1])[None]
  column = lambda x: x[:, None]
  tokens = jnp.where(
      order == column(kept),
      buffers.take_along(lookahead.following, column(kept), axis=1),
      fallbacks.pad_one(lookahead.tokens))
  s3 = continuation.passed
  tokens = jnp.where(column(s3), continuation.tokens, tokens)
  log_probs = jnp.where(
      column(s3) & (order > column(lookahead.num_verified)),
      continuation.log_probs, token_buffer.log_probs(lookahead.logits, tokens))
  count = jnp.where(s3, continuation.count, kept + 1)
  right = jnp.where(s3, lookahead.num_verified, kept)
  return (jnp.where(column(result.rows), result.tokens, tokens),
          jnp.where(column(result.rows), result.log_probs, log_probs),
          jnp.where(result.rows, result.count, count),
          jnp.where(result.rows, 0, right))


def _count(stats: Stats, options, lookahead: Lookahead, continuation, result,
           compared, tested, emitted, running, ended_in) -> Stats:
  """Adds the costs of an iteration; `ended_in [B]` is 0 to 3 for S1 to S4."""
  running = running.astype(jnp.int32)
  by_draft = int(options.rollout_model.needs_draft)
  one_hot = lambda size, x: running[:, None] * (
      jnp.arange(size)[None] == x[:, None]).astype(jnp.int32)
  # A tree whose paths were compared by reward knows the best one's.
  tested = (tested & (lookahead.reward_calls == 0)).astype(jnp.int32)
  reward_calls = (tested + lookahead.reward_calls + continuation.reward_calls +
                  (ended_in % 2) * options.num_candidates + compared)
  return stats.add(
      target_calls=running * (
          1 + continuation.calls + (1 - by_draft) * result.calls),
      draft_calls=running * (lookahead.calls + by_draft * result.calls),
      emitted=emitted, nodes=running * lookahead.nodes,
      accepted_by_depth=one_hot(stats.accepted_by_depth.shape[1],
                                lookahead.num_verified),
      states=one_hot(_NUM_STATES, ended_in),
      reward_calls=running * reward_calls)
