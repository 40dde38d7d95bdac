"""Search over whole texts, level by level: W beams or W samples of each row.

Between two levels the rules of a search may select among the texts, as
particles do that are resampled, and end a row before its texts have ended.
"""

import functools
from typing import Any, Callable, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.kernels import random
from decoding_jax.runtime import greedy_rollout, token_buffer
from decoding_jax.search import beam as beam_lib
from decoding_jax.search import texts as texts_lib
from decoding_jax.search.texts import Texts
from decoding_jax.types import Array, Context, DecodeState, Decoder, PAD


class Level(NamedTuple):
  """The rules of a search; all functions see all rows."""
  # `(keys [B], context, log_probs [B, W', V], texts, width) -> (tokens [B,
  # width], parents [B, width], beam, counts)`, the next level; see `each_row`.
  # The probability of a text that is not alive is 1 at one token, its end.
  # There may be more texts than `width`, if they have ended.
  expand: Callable[..., tuple[Array, Array, Any, dict[str, Array]]]
  # `(keys [B], context, texts) -> [B, W]`; the text of the highest rank is the
  # result
  rank: Callable[..., Array]
  needs_reward: bool = False  # Whether the rules need a reward
  # `(context) -> (state, counts)`, see `Texts`; None for neither
  init: Callable[..., tuple[Any, dict[str, Array]]] | None = None
  # `(keys [B], i, context, texts) -> texts` after level i, such as `texts.take`
  # of some of them; None for all
  select: Callable[..., Texts] | None = None
  # `(context, texts) -> [B]` bool, whether a row ends before its texts do; None
  # for never
  ends: Callable[..., Array] | None = None


def decoder(level: Level, width: int, most_samples: int | None = None
            ) -> Decoder:
  """Makes a decoder whose only step searches the whole text.

  Args:
    level: the rules of the search.
    width: W.
    most_samples: different tokens drawn after a text, at most; None for W.

  Returns:
    The decoder. Its `stats.extra` has the texts of all beams, the best first:
    `beams [B, W, L]` int32 (`PAD` after their ends), `beam_lengths [B, W]`,
    `beam_log_probs [B, W]` under the distribution that is searched, and
    `beam_scores [B, W]`, which are perturbed if the beams are samples without
    replacement, and log-weights if they are particles; and the counts of the
    rules.
  """
  return Decoder(functools.partial(init_stats, level, width),
                 functools.partial(search_step, functools.partial(
                     _search, level, width), level), max_slots_ahead=0,
                 max_samples_per_node=most_samples or width,
                 needs_reward=level.needs_reward)


def each_row(rule):
  """Makes a `Level.expand` of a rule for one row, as `beam.plain` is."""
  def expand(keys, context, log_probs, texts, width):
    del context
    tokens, parents, beam = jax.vmap(functools.partial(rule, width=width))(
        keys, log_probs, texts.alive, texts.beam)
    return tokens, parents, beam, texts.counts

  return expand


def of_beams(rule, penalty: float = 0.0):
  """Makes a `Level.expand` of a function of `beam`, such as `beam.plain`.

  Args:
    rule: the function.
    penalty: of `per_length`, which ranks the texts. One above 0 prefers longer
      texts: then W texts that have ended are kept next to W that go on, since
      they would push these out.
  """
  if penalty <= 0:
    return each_row(lambda key, log_probs, alive, beam, width: rule(
        key, log_probs, beam, width))

  def expand(keys, context, log_probs, texts, width):
    above, limit = log_probs.shape[1], texts.tokens.shape[-1]

    def row(key, log_probs, beam, scores, length):
      going = jax.tree.map(lambda x: x[:above], beam)
      ended = beam_lib.Beam(beam.log_probs[above:], scores[above:])
      ranked = rule(key, log_probs, going, (1 + len(context.eos_id)) * width)
      return beam_lib.split(
          ranked, token_buffer.ends(ranked[0], context.eos_id), ended, above,
          length**penalty, float(limit)**penalty, width)

    tokens, parents, beam = jax.vmap(row)(
        keys, log_probs, texts.beam, per_length(penalty)(keys, context, texts),
        1. + texts.lengths[:, :above].max(axis=1))
    return tokens, parents, beam, texts.counts

  return expand


def score(keys, context: Context, texts: Texts):
  """Returns the scores of the beams `[B, W]`: a `Level.rank`."""
  del keys, context
  return texts.beam.scores


def per_length(penalty: float):
  """Ranks by log-probability over length to the power of `penalty`."""
  def rank(keys, context, texts):
    del keys, context
    lengths = jnp.maximum(texts.lengths, 1).astype(jnp.float32)
    return texts.beam.log_probs / lengths**penalty

  return rank


def reward(keys, context: Context, texts: Texts):
  """Returns the rewards of the beams `[B, W]`: a `Level.rank`."""
  del keys
  return texts_lib.rewards(context, texts)


def count_rewards(width: int):
  """Makes a `Level.init` of `reward_calls`: the W of ranking, in each row."""
  return lambda context: ((), {
      "reward_calls": jnp.full_like(context.prompt_lengths, width)})


def search_step(search, level: Level, context: Context,
                state: DecodeState) -> DecodeState:
  """Searches by `(context, state) -> (texts, counts)`, commits the best."""
  texts, counts = search(context, state)
  limit = texts.tokens.shape[-1]
  rank = level.rank(_fold_in(state.keys, 2 * limit), context, texts)
  # Of equal ranks the more probable text is first, then the earlier one.
  order = jnp.lexsort((-texts.beam.log_probs, -rank), axis=-1)
  texts = texts_lib.take(
      texts, order[:, :state.stats.extra["beam_lengths"].shape[1]])
  return texts_lib.commit(
      state, texts, {**texts.counts, "beams": texts.tokens,
                     "beam_lengths": texts.lengths,
                     "beam_log_probs": texts.beam.log_probs,
                     "beam_scores": texts.beam.scores}, **counts)


def init_stats(level: Level, width: int, context: Context, state: DecodeState,
               depth: int = 0) -> DecodeState:
  """Returns the state with counts of 0 and W empty texts."""
  shape = len(state.length), width, texts_lib.limit(context, state)
  beams = jnp.zeros(shape[:2], jnp.float32)
  return texts_lib.no_stats(state, {
      "beams": jnp.full(shape, PAD, jnp.int32),
      "beam_lengths": beams.astype(jnp.int32), "beam_log_probs": beams,
      "beam_scores": beams, **_begin(level, context)[1]}, depth)


def _begin(level: Level, context: Context):
  """Returns state and counts of the rules."""
  return level.init(context) if level.init else ((), {})


def _search(level: Level, width, context: Context, state: DecodeState):
  """Returns all texts, and the forwards of each row."""
  limit = texts_lib.limit(context, state)
  model, params = context.target, context.target_params
  logits, cache = greedy_rollout.extend(model, params, state.target_cache,
                                        token_buffer.newest(state, 1), 1)

  def grow(i, logits, texts):
    levels = jnp.full_like(state.length, i)
    texts = texts_lib.grow(level.expand, width, context, state.keys, levels,
                           logits, texts)
    if level.select:
      texts = level.select(_fold_in(state.keys, limit + i), i, context, texts)
      texts = texts_lib.reseat(texts, i * width)
    if level.ends:
      texts = texts.replace(
          alive=texts.alive & ~level.ends(context, texts)[:, None])
    return texts

  def step(carry):
    i, texts, calls = carry
    calls += texts.alive.any(axis=1).astype(jnp.int32)
    going = texts_lib.first(texts, width)
    tokens = jnp.maximum(going.tokens[:, :, i - 1], 0)
    positions = cache.length[:, None] + i - 1
    logits, block = model.forward(
        params, tokens, jnp.broadcast_to(positions, tokens.shape), cache,
        texts.block, (i - 1) * width, going.mask)
    return i + 1, grow(i, logits, texts.replace(block=block)), calls

  # With max_new_tokens=1 the loop does not run, but is traced.
  texts = grow(jnp.int32(0), logits, texts_lib.begin(
      cache, len(state.length), limit, width * max(limit - 1, 1),
      *_begin(level, context)))
  _, texts, calls = jax.lax.while_loop(
      lambda carry: (carry[0] < limit) & carry[1].alive.any(), step,
      (jnp.int32(1), texts, jnp.ones_like(state.length)))
  return texts, {"target_calls": calls}


def _fold_in(keys, number):
  return jax.vmap(random.fold_in, (0, None))(keys, number)
