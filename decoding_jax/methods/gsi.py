"""Guided speculative inference (GSI, arXiv 2506.04118): drafted segments."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers, random
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.search import segments as segments_lib
from decoding_jax.types import Context, DecodeState, Decoder, Method, Stats
from decoding_jax.validation import values

EXAMPLES = (dict(num_samples=2, segment=3),)


def make(num_samples: int, segment: int, reward_weight: float = 1.0,
         threshold: float | None = None, end: int | None = None) -> Method:
  """Makes guided speculative inference: soft best of n by a drafter's segments.

  For each segment the draft model draws n continuations, and one forward of the
  target scores them. One is drawn in proportion to exp(beta r~), r~ = r +
  (log t - log d) / beta the tilted reward, r the text's so far, t and d
  the probabilities of the continuation under target and draft. If its tilted
  reward is under a threshold u, the target draws n itself, of which one is
  drawn in proportion to exp(beta r). As n grows a segment has the
  distribution t exp(beta r), normalised. For temperatures above 0.

  Args:
    num_samples: n.
    segment: tokens of a segment, at most.
    reward_weight: beta, positive.
    threshold: u; None: the target draws only if it allows none of the drafts.
    end: a token that ends a segment, such as a blank line's; None for
      none.

  Returns:
    The method; its `stats.extra` has `reward_calls [B]` and `fallbacks [B]`,
    segments that the target drew.
  """
  values.check_positives(num_samples=num_samples, segment=segment)
  values.check_number("reward_weight", reward_weight, 1e-6)
  if threshold is not None:
    values.check_number("threshold", threshold)
  if end is not None and not values.is_integer(end):
    raise ValueError(f"end={end!r}: the id of a token is needed, or None.")
  sizes = segments_lib.Sizes(num_samples, segment, end)
  return Method(f"gsi({num_samples}x{segment})", greedy=None, sampled=Decoder(
      _init, functools.partial(_step, sizes, reward_weight, threshold),
      max_slots_ahead=segment, needs_draft=True, needs_reward=True))


def _init(context: Context, state: DecodeState) -> DecodeState:
  """Sets `carry` to the states of the reward."""
  return state.replace(carry=text_reward.init(context), stats=Stats.zeros(
      len(state.length), reward_calls=(), fallbacks=()))


def _step(sizes, beta, threshold, context: Context,
          state: DecodeState) -> DecodeState:
  """Draws and scores segments, and commits one of each row."""
  keys = jax.vmap(lambda key, step: random.split(random.fold_in(key, step), 4))(
      state.keys, state.step)
  newest = token_buffer.newest(state, 1)[:, 0]
  room = jnp.where(state.done, 0, state.limit - state.length)
  target = segments_lib.Sampler(context.target, context.target_params,
                                state.target_cache, context.warper)
  draft = segments_lib.Sampler(context.draft, context.draft_params,
                               state.draft_cache, context.draft_warper)
  drafted = segments_lib.draw(keys[:, 0], context, draft, newest, room, sizes)
  scored = segments_lib.score(target, newest, drafted, sizes)
  tilted = _rewards(context, state, scored) + (
      scored.log_probs - drafted.log_probs) / beta
  chosen = _draw(keys[:, 1], beta * tilted)
  of_chosen = buffers.take_along(tilted, chosen[:, None], axis=1)[:, 0]
  # It is -inf only where the target allows none of the drafts.
  under = of_chosen == -jnp.inf
  if threshold is not None:
    under |= of_chosen < threshold
  fallback = under & ~state.done

  def draw():
    own = segments_lib.draw(keys[:, 2], context, target, newest,
                            jnp.where(fallback, room, 0), sizes)
    again = _draw(keys[:, 3], beta * _rewards(context, state, own))
    return segments_lib.where(
        fallback, own.replace(calls=scored.calls + own.calls),
        scored), jnp.where(fallback, again, chosen)

  scored, chosen = jax.lax.cond(fallback.any(), draw, lambda: (scored, chosen))
  return _commit(context, state, sizes, drafted, scored, chosen, fallback)


def _commit(context, state, sizes, drafted, scored, chosen, fallback):
  """Commits the chosen segment to the text, and to both caches. The draft model
  has not read a segment that the target drew: it does so now."""
  running = (~state.done).astype(jnp.int32)
  take = lambda x: jax.vmap(lambda x, i: x[i])(x, chosen)
  tokens, slots = take(scored.tokens), segments_lib.slots(chosen, sizes)
  before = token_buffer.newest(state, 1)
  new, count = token_buffer.commit(
      state, tokens, take(scored.own_log_probs),
      take(scored.valid).sum(axis=1, dtype=jnp.int32), context.eos_id)
  draft_cache = jax.lax.cond(
      fallback.any(),
      lambda: greedy_rollout.extend(
          context.draft, context.draft_params, state.draft_cache,
          jnp.concatenate([before, tokens[:, :-1]], axis=1), count)[1],
      lambda: cache_lib.commit(state.draft_cache, drafted.block, slots, count))
  fell = fallback.astype(jnp.int32)
  order = jnp.arange(sizes.steps)[None]
  return new.replace(
      carry=text_reward.advance(context, state.carry, tokens,
                                order < count[:, None]),
      target_cache=cache_lib.commit(state.target_cache, scored.block, slots,
                                    count),
      draft_cache=draft_cache,
      stats=state.stats.add(
          target_calls=scored.calls, draft_calls=drafted.calls + fell,
          emitted=count, accepted_by_depth=running[:, None],
          reward_calls=sizes.count * (running + fell), fallbacks=fell))


def _rewards(context, state, paths):
  """Returns `[B, n]`, the reward of the text with each segment."""
  return text_reward.of_paths(context, state.carry, paths.tokens, paths.valid)


def _draw(keys, logits):
  """Draws one of n in proportion to the exponentials of `[B, n]`."""
  noise = jax.vmap(lambda key: random.gumbel(key, logits.shape[1]))(keys)
  return jnp.argmax(logits + noise, axis=1).astype(jnp.int32)
