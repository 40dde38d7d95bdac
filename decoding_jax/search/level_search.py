"""Search over whole texts, level by level: W beams or W samples of each row.

The beams of a row are a tree whose nodes are slots of one block: they share
the committed prefix, and no cache is copied when beams are reordered. Node w of
level i is slot `i * W + w`, and the past of a beam is one row of the mask:

    slot     0  1    2  3    4  5        W = 2 beams, 3 levels
    parent   -  -    1  1    2  3        slot 4 attends to 1, 2 and itself
"""

import functools
from typing import Any, Callable, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import random
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.search import beam as beam_lib
from decoding_jax.types import (Array, Block, Context, DecodeState, Decoder,
                                PAD, Stats)


class Level(NamedTuple):
  """The rules of a search.

  Attributes:
    expand: `(key, log_probs [W, V], alive [W], beam, width) -> (tokens
      [width], parents [width], beam)`, the next level of one row; see
      `beam.plain`. The probability of a beam that is not alive is 1 at one
      token, its end.
    rank: `(context, texts) -> [B, W]`; the text of the highest rank is the
      result.
    needs_reward: whether `rank` needs a reward.
  """
  expand: Callable[..., tuple[Array, Array, Any]]
  rank: Callable[..., Array]
  needs_reward: bool = False


@flax.struct.dataclass
class Texts:
  """The beams of each row.

  Attributes:
    tokens: `[B, W, L]` int32, `PAD` after the end.
    lengths: `[B, W]` int32.
    alive: `[B, W]` bool, whether the text goes on.
    beam: a `beam.Beam` of `[B, W]`.
    log_probs: `[B, W, L]` float32, the target's own, of each token.
    mask: `[B, W, N]` bool, the slots of each beam's tokens.
    block: N = W * max(L - 1, 1) slots; the last level needs no forward.
  """
  tokens: Array
  lengths: Array
  alive: Array
  beam: beam_lib.Beam
  log_probs: Array
  mask: Array
  block: Block


def decoder(level: Level, width: int) -> Decoder:
  """Makes a decoder whose only step searches the whole text.

  Args:
    level: the rules of the search.
    width: W.

  Returns:
    The decoder. Its `stats.extra` has the texts of all beams, the best first:
    `beams [B, W, L]` int32 (`PAD` after their ends), `beam_lengths [B, W]`,
    `beam_log_probs [B, W]` under the distribution that is searched, and
    `beam_scores [B, W]`, which are perturbed if the beams are samples without
    replacement.
  """
  return Decoder(functools.partial(_init, level, width),
                 functools.partial(_step, level, width), max_slots_ahead=0,
                 max_samples_per_node=width, needs_reward=level.needs_reward)


def score(context: Context, texts: Texts):
  """Returns the scores of the beams `[B, W]`: a `Level.rank`."""
  del context
  return texts.beam.scores


def per_length(penalty: float):
  """Makes a `Level.rank`: the log-probability over length to a power.

  Args:
    penalty: the power; 0 ranks by log-probability, 1 by its mean a token.

  Returns:
    `(context, texts) -> [B, W]`.
  """
  def rank(context, texts):
    del context
    lengths = jnp.maximum(texts.lengths, 1).astype(jnp.float32)
    return texts.beam.log_probs / lengths**penalty

  return rank


def reward(context: Context, texts: Texts):
  """Returns the rewards of the beams `[B, W]`: a `Level.rank`."""
  order = jnp.arange(texts.tokens.shape[-1])[None, None]
  return text_reward.of_paths(
      context, text_reward.init(context), jnp.maximum(texts.tokens, 0),
      order < texts.lengths[..., None])


def _init(level: Level, width, context: Context,
          state: DecodeState) -> DecodeState:
  batch, size = state.tokens.shape
  new = size - context.prompts.shape[1]
  zeros = jnp.zeros(batch, jnp.int32)
  beams = jnp.zeros((batch, width), jnp.float32)
  extra = {"beams": jnp.full((batch, width, new), PAD, jnp.int32),
           "beam_lengths": beams.astype(jnp.int32), "beam_log_probs": beams,
           "beam_scores": beams}
  if level.needs_reward:
    extra["reward_calls"] = zeros
  return state.replace(
      stats=Stats(zeros, zeros, zeros, zeros, zeros[:, None], extra))


def _step(level: Level, width, context: Context,
          state: DecodeState) -> DecodeState:
  """Searches all beams, and commits the best one of each row."""
  texts, calls = _search(level, width, context, state)
  rank = level.rank(context, texts)
  # Of equal ranks the more probable beam is first, then the earlier one.
  order = jnp.lexsort((-texts.beam.log_probs, -rank), axis=-1)
  take = lambda x: jax.vmap(lambda x, i: x[i])(x, order)
  tokens, lengths = take(texts.tokens), take(texts.lengths)
  first = lambda x: token_buffer.append(x[0], state.length, x[1][:, 0],
                                        lengths[:, 0])
  extra = {"beams": tokens, "beam_lengths": lengths,
           "beam_log_probs": take(texts.beam.log_probs),
           "beam_scores": take(texts.beam.scores)}
  if level.needs_reward:
    extra["reward_calls"] = jnp.full_like(calls, width)
  new = state.replace(
      tokens=first((state.tokens, tokens)),
      log_probs=first((state.log_probs, take(texts.log_probs))),
      length=state.length + lengths[:, 0],
      stats=state.stats.replace(
          target_calls=calls, emitted=lengths[:, 0],
          accepted_by_depth=calls[:, None], extra=extra))
  # Some rows may be done already.
  new = token_buffer.keep_done(state, new)
  return new.replace(step=state.step + 1, done=jnp.ones_like(state.done))


def _search(level: Level, width, context: Context, state: DecodeState):
  """Returns all beams, and the forwards of each row `[B]`."""
  limit = state.tokens.shape[1] - context.prompts.shape[1]
  model, params = context.target, context.target_params
  batch = len(state.length)
  logits, cache = greedy_rollout.extend(model, params, state.target_cache,
                                        token_buffer.newest(state, 1), 1)
  grow = functools.partial(_grow, level, width, context, state)
  texts = grow(jnp.int32(0), logits, _empty(cache, batch, width, limit))

  def step(carry):
    i, texts, calls = carry
    calls += texts.alive.any(axis=1).astype(jnp.int32)
    newest = jnp.maximum(texts.tokens[:, :, i - 1], 0)
    positions = cache.length[:, None] + i - 1
    logits, block = model.forward(
        params, newest, jnp.broadcast_to(positions, newest.shape), cache,
        texts.block, (i - 1) * width, texts.mask)
    return i + 1, grow(i, logits, texts.replace(block=block)), calls

  calls = jnp.ones(batch, jnp.int32)
  _, texts, calls = jax.lax.while_loop(
      lambda carry: (carry[0] < limit) & carry[1].alive.any(), step,
      (jnp.int32(1), texts, calls))
  return texts, calls


def _empty(cache, batch, width, limit) -> Texts:
  """Returns empty texts, one beam a row, in arrays for whole texts."""
  # With max_new_tokens=1 the loop does not run, but is traced.
  slots = width * max(limit - 1, 1)
  return Texts(
      tokens=jnp.full((batch, 1, limit), PAD, jnp.int32),
      lengths=jnp.zeros((batch, 1), jnp.int32),
      alive=jnp.ones((batch, 1), bool),
      beam=jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, 1)),
                        beam_lib.root()),
      log_probs=jnp.zeros((batch, 1, limit), jnp.float32),
      mask=jnp.zeros((batch, 1, slots), bool),
      block=cache_lib.init_block(cache, slots))


def _grow(level: Level, width, context: Context, state: DecodeState, i, logits,
          texts: Texts) -> Texts:
  """Extends the beams to level i."""
  next_log_probs = jax.vmap(sampling.log_probs)(
      sampling.without_temperature(context.warper) if context.warper.greedy
      else context.warper, logits)
  # A beam that has ended repeats its end with probability 1, which leaves its
  # log-probability as it is.
  end = jnp.arange(next_log_probs.shape[-1]) == jnp.maximum(
      context.eos_id[0], 0)
  next_log_probs = jnp.where(texts.alive[..., None], next_log_probs,
                             jnp.where(end, 0., -jnp.inf))
  keys = jax.vmap(random.fold_in, (0, None))(state.keys, i)
  tokens, parents, beam = jax.vmap(functools.partial(
      level.expand, width=width))(keys, next_log_probs, texts.alive, texts.beam)
  take = lambda x: jax.vmap(lambda x, i: x[i])(x, parents)
  alive, lengths = take(texts.alive), take(texts.lengths)
  slots = jnp.arange(texts.mask.shape[-1])[None]
  own = slots == i * width + jnp.arange(width)[:, None]
  log_probs = token_buffer.log_probs(take(logits), tokens)
  put = lambda buffer, x: take(buffer).at[:, :, i].set(x)
  return Texts(
      tokens=put(texts.tokens, jnp.where(alive, tokens, PAD)),
      lengths=lengths + alive.astype(jnp.int32),
      # A beam of probability 0 only fills up W.
      alive=(alive & ~token_buffer.ends(tokens, context.eos_id) &
             (beam.log_probs > -jnp.inf)),
      beam=beam,
      log_probs=put(texts.log_probs, jnp.where(alive, log_probs, 0.)),
      mask=take(texts.mask) | own[None], block=texts.block)
