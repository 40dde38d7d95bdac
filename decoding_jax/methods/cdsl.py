"""CDSL: constrained decoding with speculative lookaheads (arXiv 2412.10418)."""

import functools

import jax.numpy as jnp

from decoding_jax.lookahead import candidates, cdsl_rules
from decoding_jax.lookahead import draft_lookahead
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import token_buffer
from decoding_jax.types import Context, DecodeState, Decoder, Method, Stats


def make(lookahead: int, num_candidates: int, weight: int = 1,
         reward_weight: float = 1.0, acceptance_threshold: float = 0.5,
         low_acceptance: str = "target_rollout",
         reward_test: str = "progress", reward_threshold: float | None = None,
         commit: str = "prefix", rollout: str = "target", width: int = 1,
         tree: str = "rsd_s", slack: float = 0.0,
         search_commit: str = "token") -> Method:
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
    commit: "prefix"; "rise": likewise, but where the reward rises, of what
      would be committed no more than it takes for that; or "full", by which V
      is all that was drafted where a is high, and the text no longer what the
      target would have said.
    rollout: "target" or "draft".
    width: 1 for a chain; else a tree of so many tokens a level is drafted, and
      V is the verified path of the greatest reward; of equal ones the longest,
      then the most probable.
    tree: "rsd_s", by beam search; or "rsd_c", the `width` most probable first
      tokens and a chain after each, the chain of width 1 among them.
    slack: the target takes a drafted token that is its most probable one, or
      less than so many nats below it. Without slack it verifies one path.
    search_commit: "token", as the paper does; or "roll_out": a search commits
      the roll-out after its token too, where the reward of both passes.

  Returns:
    The method; its `stats.extra` has `states [B, 4]`, the iterations that
    ended in S1..S4, and `reward_calls [B]`, how often a gate, a search or a
    rise compared the reward of a text.

  Raises:
    ValueError: for a value that is not allowed.
  """
  return _make(
      candidates.make_options(num_candidates, lookahead, weight, reward_weight,
                              rollout),
      cdsl_rules.make_gates(lookahead, width, tree, slack,
                            acceptance_threshold, low_acceptance, reward_test,
                            reward_threshold, commit, search_commit, rollout))


@functools.lru_cache(maxsize=None)
def _make(search, gates):
  if gates.width > 1:
    look = functools.partial(
        draft_lookahead.tree, gates.drafter(gates.width, search.steps))
  else:
    look = functools.partial(draft_lookahead.chain, search.steps)
  look = functools.partial(look, gates.slack, gates.max_draft_lag)
  return Method(
      f"cdsl({candidates.describe(search)}, {gates.name})",
      sampled=None,
      # Two lookaheads are written: the draft's, and what the target goes on.
      greedy=Decoder(functools.partial(_init, search),
                     functools.partial(_step, search, gates, look),
                     max_slots_ahead=2 * search.steps + 1,
                     needs_draft=True,
                     needs_reward=True,
                     max_samples_per_node=max(gates.width,
                                              search.num_candidates)))


def _init(search, context: Context, state: DecodeState) -> DecodeState:
  """What is carried are the states of the reward, and its values `[B]`."""
  reward, none = text_reward.init(context), jnp.zeros_like(state.length)
  counts = lambda size: jnp.zeros((len(none), size), jnp.int32)
  return state.replace(
      carry=(reward, text_reward.value(context, reward)),
      stats=Stats(none, none, none, none, counts(search.steps + 1),
                  {"states": counts(cdsl_rules.STATES), "reward_calls": none}))


def _step(search, gates, look, context: Context,
          state: DecodeState) -> DecodeState:
  """Drafts, verifies, goes through the gates, and commits."""
  runs, (reward, value) = ~state.done, state.carry
  passes = functools.partial(gates.test, gates.threshold,
                             context.reward.maximum, value)
  drafted = look(context, state, reward)
  taken = gates.num_to_commit(drafted.same, drafted.size)
  high = runs & (drafted.same >= jnp.array(gates.needed)[drafted.size])
  s1 = high & passes(
      text_reward.value_after(context, reward, drafted.tokens, taken))
  rest = gates.on_low_acceptance(passes, context, state, drafted, runs & ~high,
                                 reward)
  searches = runs & ~(s1 | rest.passed)
  found = cdsl_rules.search_where(searches, passes, gates, context, search,
                                  state, drafted, rest, reward)
  tokens, log_probs, count, right = cdsl_rules.merge(drafted, taken, rest,
                                                     found)
  compared = jnp.zeros_like(count)
  if gates.only_if_gain:
    compared, _ = token_buffer.cut(state, tokens, count, context.eos_id)
    count = text_reward.tokens_until_gain(context, reward, value, tokens,
                                          compared)
  new, count = token_buffer.commit(state, tokens, log_probs, count,
                                   context.eos_id)
  reward = text_reward.advance(
      context, reward, tokens,
      jnp.arange(search.steps + 1)[None] < count[:, None])
  target_cache, draft_cache = cdsl_rules.settle(state, drafted, found, right,
                                                new.length)
  at = jnp.where(high, jnp.where(s1, 0, 1), jnp.where(rest.passed, 2, 3))
  return new.replace(
      target_cache=target_cache, draft_cache=draft_cache,
      carry=(reward, text_reward.value(context, reward)),
      stats=cdsl_rules.count(state.stats, search, drafted, rest, found,
                             compared, count, runs, at))
