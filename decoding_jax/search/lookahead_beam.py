"""A beam whose texts are ranked with a lookahead: the decoder of DeAL."""

import functools
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.search import texts as texts_lib
from decoding_jax.search.texts import Texts
from decoding_jax.types import Array, Block, Context, DecodeState, Decoder


class Sizes(NamedTuple):
  """The sizes of a search."""
  num_beams: int  # W
  num_candidates: int  # k, the most probable next tokens of each beam
  steps: int  # tokens rolled out after each
  reward_weight: float  # lambda


@flax.struct.dataclass
class _Beams:
  """The carry of a search from token to token."""
  texts: Texts  # the beams, `[B, W, ...]`
  # `[B, W]` float32, of each text; -inf of a beam that only fills up W.
  log_probs: Array
  scores: Array  # `[B, W]` float32, by which they were chosen
  # L * W slots of beams, then slots of roll-outs, which each token overwrites.
  block: Block
  calls: Array  # `[B]` int32, forwards
  reward_calls: Array  # `[B]` int32


def decoder(sizes: Sizes) -> Decoder:
  """Makes a decoder whose only step searches, for temperature 0. Its
  `stats.extra` has `beams [B, W, L]` int32, the last beams, the best first;
  `beam_scores [B, W]`, and `reward_calls [B]`."""
  return Decoder(functools.partial(_init, sizes),
                 functools.partial(_step, sizes), max_slots_ahead=0,
                 max_samples_per_node=sizes.num_candidates, needs_reward=True)


def _init(sizes: Sizes, context: Context, state: DecodeState) -> DecodeState:
  none = jnp.zeros_like(state.length)
  shape = len(none), sizes.num_beams, texts_lib.limit(context, state)
  extra = {"beams": jnp.zeros(shape, jnp.int32),
           "beam_scores": jnp.zeros(shape[:2], jnp.float32),
           "reward_calls": none}
  return texts_lib.no_stats(state, extra)


def _step(sizes: Sizes, context: Context, state: DecodeState) -> DecodeState:
  """Searches, and commits the best beam of each row."""
  limit, batch = texts_lib.limit(context, state), len(state.length)
  width, size = sizes.num_beams, sizes.num_beams * sizes.num_candidates
  slots = limit * width + size * sizes.steps
  root = texts_lib.empty(batch, limit, slots)
  texts = texts_lib.repeat(root.replace(alive=~state.done[:, None]), width)
  first = jnp.broadcast_to(jnp.arange(width)[None] == 0, texts.lengths.shape)
  none = jnp.zeros(batch, jnp.int32)
  log_probs = jnp.where(first, 0., -jnp.inf)
  beams = _Beams(texts.replace(alive=texts.alive & first), log_probs, log_probs,
                 cache_lib.init_block(state.target_cache, slots), none, none)
  _, beams = jax.lax.while_loop(
      lambda carry: carry[1].texts.alive.any(),
      functools.partial(_extend, sizes, context, state), (jnp.int32(0), beams))
  extra = {"beams": beams.texts.tokens, "beam_scores": beams.scores,
           "reward_calls": beams.reward_calls}
  best = texts_lib.take(beams.texts, none[:, None])
  return texts_lib.commit(state, best, extra, target_calls=beams.calls)


def _extend(sizes: Sizes, context: Context, state: DecodeState, carry):
  """Extends all beams by a token; the best of their extensions are beams."""
  i, beams = carry
  limit, width = beams.texts.tokens.shape[-1], sizes.num_beams
  size = width * sizes.num_candidates
  alive = beams.texts.alive
  grow = functools.partial(
      texts_lib.extend, context, state, state.target_cache,
      choose=functools.partial(texts_lib.greedy, context))
  # Their next tokens are not those that `grow` has chosen.
  grown = grow(beams.block, beams.texts, steps=1, slot=lambda _: i * width)
  texts = beams.texts.replace(mask=grown.texts.mask)
  candidates, log_probs = _candidates(sizes, context, texts, grown.logits)
  log_probs += jnp.repeat(beams.log_probs, sizes.num_candidates, axis=1)
  rolled = grow(
      grown.block, candidates.replace(
          alive=candidates.alive & (log_probs > -jnp.inf)),
      steps=sizes.steps, slot=lambda j: limit * width + j * size)
  scores = log_probs
  if sizes.reward_weight:  # 0 * -inf would be NaN.
    scores += sizes.reward_weight * texts_lib.rewards(context, rolled.texts)
  scores = jnp.where(log_probs > -jnp.inf, scores, -jnp.inf)
  scores, best = jax.lax.top_k(scores, width)
  running = alive.any(axis=1)
  chosen = texts_lib.take(candidates, best)
  log_probs = buffers.take_along(log_probs, best, axis=1)
  return i + 1, _Beams(
      chosen.replace(alive=chosen.alive & (log_probs > -jnp.inf)), log_probs,
      scores, rolled.block, beams.calls + grown.calls + rolled.calls,
      beams.reward_calls + running.astype(jnp.int32) * size)


def _candidates(sizes: Sizes, context: Context, texts: Texts, logits):
  """Returns W * k extensions, grouped by beam, and log-probs."""
  count = sizes.num_candidates
  best, tokens = sampling.top_k(
      texts_lib.next_log_probs(context.warper, logits), count)
  own = jnp.where(jnp.arange(count) == 0, 0., -jnp.inf)
  best = jnp.where(texts.alive[..., None], best, own[None, None])
  wide = texts_lib.repeat(texts, count)
  flat = lambda x: x.reshape(len(x), -1, *x.shape[3:])
  return texts_lib.append(context, wide, flat(tokens),
                          jnp.repeat(logits, count, axis=1)), flat(best)
