"""The CDLH step: candidates for the next token, chosen by lookahead."""

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import buffers
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout
from decoding_jax.types import Array, Context, DecodeState
from decoding_jax.validation import values as values_lib


class SearchOptions(NamedTuple):
  """Sizes and weights of a CDLH step."""
  num_candidates: int  # K, the most probable tokens
  steps: int  # n, tokens rolled out after each
  weight: float  # of the candidate's log-probability in its score
  reward_weight: float  # of the reward of the text with candidate and roll-out
  rollout_model: greedy_rollout.RolloutModel  # the model that rolls out


@flax.struct.dataclass
class Choice:
  """The best candidate of each row."""
  token: Array  # `[B]` int32
  index: Array  # `[B]` int32, which of the paths it is
  reward: Array  # `[B]` float32, of the text with that path
  paths: greedy_rollout.Rollout  # the roll-outs


def make_options(num_candidates, lookahead, weight, reward_weight,
                 rollout) -> SearchOptions:
  """Checks sizes and weights of a CDLH step; raises ValueError."""
  values_lib.check_positives(num_candidates=num_candidates, lookahead=lookahead)
  values_lib.check_one_of("weight", weight, {0: 0, 1: 1})
  values_lib.check_number("reward_weight", reward_weight)
  rollout_model = values_lib.check_one_of("rollout", rollout,
                                          greedy_rollout.ROLLERS)
  return SearchOptions(int(num_candidates), int(lookahead), int(weight),
                       float(reward_weight), rollout_model)


def describe(options: SearchOptions) -> str:
  """Returns the options as they are written in the name of a method."""
  return (f"{options.num_candidates}x{options.steps}, w={options.weight}, "
          f"lambda={options.reward_weight:g}, "
          f"rollout={options.rollout_model.name}")


def choose(context: Context, options: SearchOptions, caches, logits,
           reward_states, room) -> Choice:
  """Chooses a token of each row by a lookahead from each candidate. Of equal
  scores the more probable wins, then the smaller id. The cache of the model
  that rolls out holds the whole text; `room [B]` is the tokens that may follow,
  0 where no choice is needed."""
  logits = greedy_rollout.allowed(context, logits)
  # In this order the first of equal scores is the one to take.
  values, candidates = sampling.top_k(logits, options.num_candidates)
  paths = greedy_rollout.roll_out(
      context, options.rollout_model.pick(context, *caches), candidates,
      jnp.minimum(room, 1 + options.steps), options.steps)
  log_probs = values - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
  rewards = text_reward.of_paths(context, reward_states, paths.tokens,
                                 paths.valid)
  scores = options.weight * log_probs
  if options.reward_weight:  # 0 * -inf would be NaN.
    scores += options.reward_weight * rewards
  index = jnp.argmax(jnp.where(values > -jnp.inf, scores, -jnp.inf), axis=-1)
  pick = lambda x: buffers.take_along(x, index[:, None], axis=1)[:, 0]
  return Choice(pick(candidates), index.astype(jnp.int32), pick(rewards), paths)


def commit_choice(context: Context, options: SearchOptions, state: DecodeState,
                  choice: Choice, count):
  """Commits a choice; returns state, logits `[B, V]`, target calls `[B]`."""
  paths, index = choice.paths, choice.index[:, None]
  if options.rollout_model.needs_draft:
    logits, cache = greedy_rollout.extend(
        context.target, context.target_params, state.target_cache,
        choice.token[:, None], count)
    drafted = cache_lib.commit(state.draft_cache, paths.block, index, count)
    state = state.replace(target_cache=cache, draft_cache=drafted)
    return state, logits[:, 0], (~state.done).astype(jnp.int32)
  # The first forward of the roll-out scored the token.
  logits = buffers.take_along(paths.logits, index[..., None], axis=1)[:, 0]
  cache = cache_lib.commit(state.target_cache, paths.block, index, count)
  return state.replace(target_cache=cache), logits, jnp.zeros_like(count)
