"""CDLH: constrained decoding with lookahead heuristics (arXiv 2402.06147)."""

import functools

import jax.numpy as jnp

from decoding_jax.lookahead import candidates
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.types import Context, DecodeState, Decoder, Method, Stats


def make(num_candidates: int, lookahead: int, weight: int = 1,
         reward_weight: float = 1.0, rollout: str = "target") -> Method:
  """Each token is the candidate with the best lookahead; temperature 0 only.

  The score of a candidate c is weight * log t(c) + reward_weight * R(text, c,
  roll-out); of equal ones the more probable is taken, then the smaller id. A
  roll-out ends where the text does: at its end, or at that of the budget.

  What the target says after c is kept from its roll-out: a token costs n
  forwards of k tokens, and the first token one more. Where the draft rolls
  out, a token costs n of its forwards, and one of the target.

  Args:
    num_candidates: k, the most probable tokens of the target.
    lookahead: n, tokens rolled out after each.
    weight: 1, or 0 to go by the reward alone.
    reward_weight: lambda.
    rollout: "target" or "draft", the model that rolls out.

  Returns:
    The method; its `stats.extra` has `reward_calls [B]`.

  Raises:
    ValueError: for a value that is not allowed.
  """
  return _make(candidates.make_options(num_candidates, lookahead, weight,
                                       reward_weight, rollout))


@functools.lru_cache(maxsize=None)
def _make(search):
  return Method(f"cdlh({candidates.describe(search)})",
                sampled=None,
                greedy=Decoder(functools.partial(_init, search),
                               functools.partial(_step, search),
                               max_slots_ahead=1,
                               max_samples_per_node=search.num_candidates,
                               needs_draft=search.roller.needs_draft,
                               needs_reward=True))


def _init(search, context: Context, state: DecodeState) -> DecodeState:
  """Runs the models on the last token of each prompt as well.

  From then on the caches hold the whole text. What is carried are the target's
  logits `[B, V]` after it, and the states of the reward.
  """
  newest = token_buffer.newest(state, 1)
  logits, cache = greedy_rollout.extend(context.target, context.target_params,
                                        state.target_cache, newest, 1)
  if search.roller.needs_draft:
    state = state.replace(draft_cache=greedy_rollout.extend(
        context.draft, context.draft_params, state.draft_cache, newest, 1)[1])
  none = jnp.zeros_like(state.length)
  return state.replace(
      target_cache=cache, carry=(logits[:, 0], text_reward.init(context)),
      stats=Stats(none + 1, none + int(search.roller.needs_draft), none, none,
                  none[:, None], {"reward_calls": none}))


def _step(search, context: Context, state: DecodeState) -> DecodeState:
  """Candidates, their roll-outs and rewards, one token."""
  runs, stats = (~state.done).astype(jnp.int32), state.stats
  logits, reward = state.carry
  roller = search.roller.pick(context, state.target_cache, state.draft_cache)
  choice = candidates.choose(context, search, roller, logits, reward,
                             runs * (state.limit - state.length))
  token = choice.token[:, None]
  state, count = token_buffer.commit(
      state, token, token_buffer.log_probs(logits[:, None], token), runs,
      context.eos_id)
  state, logits, calls = candidates.keep(context, search, state, choice, count)
  rolled = choice.paths.calls
  return state.replace(
      carry=(logits, text_reward.advance(context, reward, token,
                                         count[:, None] > 0)),
      stats=stats.replace(
          target_calls=stats.target_calls + calls + (
              0 if search.roller.needs_draft else rolled),
          draft_calls=stats.draft_calls + (
              rolled if search.roller.needs_draft else 0),
          emitted=stats.emitted + count,
          accepted_by_depth=stats.accepted_by_depth + runs[:, None],
          extra={"reward_calls": stats.extra["reward_calls"] +
                 runs * search.num_candidates}))
