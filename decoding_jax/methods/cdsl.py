"""CDSL: constrained decoding with speculative lookaheads (arXiv 2412.10418)."""

import functools

import jax.numpy as jnp

from decoding_jax import lookahead as look, rewards, text
from decoding_jax.types import Context, DecodeState, Decoder, Method, Stats


def make(lookahead: int, num_candidates: int, weight: int = 1,
         reward_weight: float = 1.0, acceptance_threshold: float = 0.5,
         low_acceptance: str = "target_rollout",
         reward_test: str = "progress", reward_threshold: float | None = None,
         commit: str = "prefix", rollout: str = "target") -> Method:
  """Drafted lookaheads, gated by acceptance and reward; temperature 0 only.

  An iteration drafts n tokens, of which the target would have taken the first
  m, V; a = m / n. A lookahead ends where the text does, n is what there is.

    S1  a is high, the reward of V passes: commits V and the target's next token
    S2  a is high, it does not: commits one token, as CDLH does
    S3  a is low, the reward of V and the n + 1 - m tokens with which the target
        goes on passes: commits these
    S4  it does not: commits one token, as CDLH does

  Args:
    lookahead: n; also the steps of a roll-out of CDLH.
    num_candidates: of CDLH, as `weight`, `reward_weight` and `rollout` are;
      see `cdlh`.
    weight: 1 or 0.
    reward_weight: lambda.
    acceptance_threshold: a is high from here on; 0 to 1.
    low_acceptance: "target_rollout", or "cdlh_step" to have no S3.
    reward_test: "progress": a reward passes that is higher than that of the
      text before, or not below its maximum; "absolute": one that is not below
      `reward_threshold`.
    reward_threshold: a number for "absolute", else None.
    commit: "prefix"; or "full", by which V is all that was drafted where a is
      high, and the text no longer what the target would have said.
    rollout: "target" or "draft".

  Returns:
    The method; its `stats.extra` has `states [B, 4]`, the iterations that
    ended in S1..S4, and `reward_calls [B]`.

  Raises:
    ValueError: for a value that is not allowed.
  """
  return _make(look.search(num_candidates, lookahead, weight, reward_weight,
                           rollout),
               look.gates(lookahead, acceptance_threshold, low_acceptance,
                          reward_test, reward_threshold, commit))


@functools.lru_cache(maxsize=None)
def _make(search, gates):
  # Two lookaheads are written: the drafted one, and what the target goes on.
  return Method(
      f"cdsl({look.describe(search)}, {gates.name})", sampled=None,
      greedy=Decoder(functools.partial(_init, search),
                     functools.partial(_step, search, gates),
                     reach=2 * search.steps + 1,
                     siblings=search.num_candidates, drafts=True, rewards=True))


def _init(search, context: Context, state: DecodeState) -> DecodeState:
  """What is carried are the states of the reward, and its values `[B]`."""
  reward, none = rewards.init(context), jnp.zeros_like(state.length)
  counts = lambda size: jnp.zeros((len(none), size), jnp.int32)
  return state.replace(
      carry=(reward, rewards.value(context, reward)),
      stats=Stats(none, none, none, none, counts(search.steps + 1),
                  {"states": counts(4), "reward_calls": none}))


def _step(search, gates, context: Context, state: DecodeState) -> DecodeState:
  """Drafts, verifies, goes through the gates, and commits."""
  runs, (reward, value) = ~state.done, state.carry
  passes = functools.partial(gates.test, gates.threshold,
                             context.reward.maximum, value)
  drafted = look.chain(search.steps, gates.late, context, state)
  taken = gates.taken(drafted.same, drafted.size)
  high = runs & (drafted.same >= jnp.array(gates.needed)[drafted.size])
  s1 = high & passes(rewards.worth(context, reward, drafted.tokens, taken))
  rest = gates.low(passes, context, state, drafted, runs & ~high, reward)
  searches = runs & ~(s1 | rest.passed)
  token, rolled = look.search_where(searches, context, search, state, drafted,
                                    reward)
  tokens, log_probs, count, right = look.merge(state, drafted, taken, rest,
                                               searches, token)
  count, done = text.cut(state, tokens, count, context.eos_id)
  reward = rewards.advance(context, reward, tokens,
                           jnp.arange(search.steps + 1) < count[:, None])
  length = state.length + count
  at = jnp.where(high, jnp.where(s1, 0, 1), jnp.where(rest.passed, 2, 3))
  return state.replace(
      step=state.step + 1, length=length, done=done,
      tokens=text.append(state.tokens, state.length, tokens, count),
      log_probs=text.append(state.log_probs, state.length, log_probs, count),
      target_cache=rest.cache.replace(length=length - 1),
      draft_cache=drafted.draft_cache.replace(length=jnp.minimum(
          state.length + jnp.minimum(right, search.steps - 1), length - 1)),
      carry=(reward, rewards.value(context, reward)),
      stats=_count(search, state.stats, runs, drafted, rest, at, rolled, count,
                   high, searches))


def _count(search, stats, runs, drafted, rest, at, rolled, count, high,
           searches) -> Stats:
  runs, rows = runs.astype(jnp.int32), runs[:, None]
  by_target, by_draft = not search.roller.drafts, search.roller.drafts
  hits = lambda size, x: rows & (jnp.arange(size) == x[:, None])
  return Stats(
      stats.target_calls + runs + rest.calls + by_target * rolled,
      stats.draft_calls + runs * drafted.calls + by_draft * rolled,
      stats.emitted + count, stats.nodes + runs * drafted.size,
      stats.accepted_by_depth + hits(search.steps + 1, drafted.same),
      {"states": stats.extra["states"] + hits(4, at),
       "reward_calls": (stats.extra["reward_calls"] + high + rest.reward_calls +
                        searches * search.num_candidates)})
