"""CDLH: constrained decoding with lookahead heuristics (arXiv 2402.06147)."""

import functools

import jax.numpy as jnp

from decoding_jax.search.lookahead import candidates
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.types import Context, DecodeState, Decoder, Method, Stats

EXAMPLES = (dict(num_candidates=3, lookahead=4),)


def make(num_candidates: int, lookahead: int, weight: int = 1,
         reward_weight: float = 1.0, rollout: str = "target") -> Method:
  """Makes CDLH: each token is the candidate with the best lookahead.

  For temperature 0 only. The score of a candidate c is weight * log t(c) +
  reward_weight * R(text, c, roll-out); of equal ones the more probable is
  taken, then the smaller id. A roll-out ends where the text does.

  The first forward of a roll-out is reused for the chosen token. So a
  token costs n forwards of k tokens, and the first token one more; where the
  draft rolls out, n of its forwards, and one of the target.

  Args:
    num_candidates: k, the most probable tokens of the target.
    lookahead: n, tokens rolled out after each.
    weight: 1; or 0, to choose by the reward alone.
    reward_weight: lambda.
    rollout: "target" or "draft", the model that rolls out.

  Returns:
    The method; its `stats.extra` has `reward_calls [B]`.
  """
  options = candidates.make_options(num_candidates, lookahead, weight,
                                    reward_weight, rollout)
  return Method(f"cdlh({candidates.describe(options)})",
                sampled=None,
                greedy=Decoder(functools.partial(_init, options),
                               functools.partial(_step, options),
                               max_slots_ahead=1,
                               max_samples_per_node=options.num_candidates,
                               needs_draft=options.rollout_model.needs_draft,
                               needs_reward=True))


def _init(options, context: Context, state: DecodeState) -> DecodeState:
  """Runs the models on the last token of each prompt as well. From then on the
  caches hold the whole text; `carry` are the target's logits `[B, V]` after it,
  and the states of the reward."""
  by_draft = options.rollout_model.needs_draft
  newest = token_buffer.newest(state, 1)
  logits, cache = greedy_rollout.extend(context.target, context.target_params,
                                        state.target_cache, newest, 1)
  if by_draft:
    state = state.replace(draft_cache=greedy_rollout.extend(
        context.draft, context.draft_params, state.draft_cache, newest, 1)[1])
  return state.replace(
      target_cache=cache, carry=(logits[:, 0], text_reward.init(context)),
      stats=Stats.zeros(len(logits), reward_calls=()).add(
          target_calls=1, draft_calls=int(by_draft)))


def _step(options, context: Context, state: DecodeState) -> DecodeState:
  """Rolls out the candidates, compares their rewards, commits one token."""
  running = (~state.done).astype(jnp.int32)
  logits, reward_states = state.carry
  choice = candidates.choose(
      context, options, (state.target_cache, state.draft_cache), logits,
      reward_states, running * (state.limit - state.length))
  token = choice.token[:, None]
  state, count = token_buffer.commit(
      state, token, token_buffer.log_probs(logits[:, None], token), running,
      context.eos_id)
  state, logits, calls = candidates.commit_choice(context, options, state,
                                                  choice, count)
  rolled, by_draft = choice.paths.calls, options.rollout_model.needs_draft
  return state.replace(
      carry=(logits, text_reward.advance(context, reward_states, token,
                                         count[:, None] > 0)),
      stats=state.stats.add(
          target_calls=calls + (0 if by_draft else rolled),
          draft_calls=rolled if by_draft else 0, emitted=count,
          accepted_by_depth=running[:, None],
          reward_calls=running * options.num_candidates))
