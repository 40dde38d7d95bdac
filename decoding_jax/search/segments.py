"""Segments: samples of a few tokens after the text of each row.

Slot 0 is the newest token of the text, which is in no cache; slot `1 + j * n +
c` is token j of segment c. A segment's last token is never read:

    slot     0  1  2  3  4        n = 2 segments of 3 tokens
    token    -  0  0  1  1        slot 4 attends to 0, 2 and itself
"""

import functools
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import sampling
from decoding_jax.kernels import random, vocabulary
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.types import (Array, Block, Cache, Context, LanguageModel,
                                Params)


class Sizes(NamedTuple):
  """Attributes: `count` n, `steps` T, `end` a token that ends one, or None."""
  count: int
  steps: int
  end: int | None


class Sampler(NamedTuple):
  """A model that draws: its parameters, cache and warper."""
  model: LanguageModel
  params: Params
  cache: Cache
  warper: sampling.LogitsWarper


@flax.struct.dataclass
class Segments:
  """Drawn segments."""
  tokens: Array  # `[B, n, T]` int32
  valid: Array  # `[B, n, T]` bool; False after the end of a segment
  # `[B, n]` float32, of the whole segment under the distribution that it is
  # drawn from.
  log_probs: Array
  own_log_probs: Array  # `[B, n, T]` float32, the model's own of each token
  block: Block  # `1 + n * (T - 1)` slots
  calls: Array  # `[B]` int32, forwards that the row needed


def draw(keys, context: Context, sampler: Sampler, newest, room,
         sizes: Sizes) -> Segments:
  """Draws n segments a row, one forward of n tokens a step. Each ends with the
  text, with `sizes.end`, after T tokens or after `room [B]` tokens, 0 for rows
  without a segment."""
  batch, (count, steps, end) = len(newest), sizes
  blank = jnp.zeros((batch, count, steps), jnp.float32)

  def extend(i, alive, logits, out):
    """Draws token i after logits `[B, n, V]`."""
    log_probs = jax.vmap(sampling.log_probs)(sampler.warper, logits)
    each = jax.vmap(lambda key: random.split(random.fold_in(key, i), count))(
        keys)
    tokens = jax.vmap(jax.vmap(sampling.draw))(each, log_probs)
    chosen = vocabulary.take(log_probs, tokens[..., None])[..., 0]
    put = lambda buffer, x: buffer.at[:, :, i].set(x)
    out = out.replace(
        tokens=put(out.tokens, tokens), valid=put(out.valid, alive),
        log_probs=out.log_probs + jnp.where(alive, chosen, 0),
        own_log_probs=put(out.own_log_probs,
                          token_buffer.log_probs(logits, tokens)))
    return token_buffer.go_on(context, alive, tokens, room[:, None] - i - 1,
                              end), out

  def step(carry):
    i, alive, out = carry
    first = 1 + (i - 1) * count
    logits, block = _forward(
        sampler, out.tokens[:, :, i - 1], i, out.block, first,
        jax.lax.dynamic_slice_in_dim(mask, first, count, 0))
    out = out.replace(block=block,
                      calls=out.calls + alive.any(axis=1).astype(jnp.int32))
    return (i + 1, *extend(i, alive, logits, out))

  mask = _mask(sizes)
  block = cache_lib.init_block(sampler.cache, len(mask))
  logits, block = _forward(sampler, newest[:, None], 0, block, 0, mask[:1])
  there = (room > 0)[:, None]
  alive, out = extend(
      jnp.int32(0), jnp.broadcast_to(there, (batch, count)),
      jnp.broadcast_to(logits, (batch, count, logits.shape[-1])),
      Segments(blank.astype(jnp.int32), blank > 0, blank[..., 0], blank, block,
               there[:, 0].astype(jnp.int32)))
  if steps == 1:
    return out
  return jax.lax.while_loop(lambda carry: (carry[0] < steps) & carry[1].any(),
                            step, (jnp.int32(1), alive, out))[2]


def score(sampler: Sampler, newest, drawn: Segments, sizes: Sizes) -> Segments:
  """Scores segments by another model: its log-probs, block and calls."""
  batch, (count, steps, _) = len(newest), sizes
  inner = drawn.tokens[..., :-1].swapaxes(1, 2).reshape(batch, -1)
  mask = _mask(sizes)
  depths = -(-jnp.arange(len(mask), dtype=jnp.int32) // count)
  logits, block = _forward(
      sampler, jnp.concatenate([newest[:, None], inner], axis=1), depths,
      cache_lib.init_block(sampler.cache, len(mask)), 0, mask)

  def of_tokens(x):
    """Makes `[B, n, T, V]` before each token of `[B, M, V]` after each node."""
    first = jnp.broadcast_to(x[:, :1, None], (batch, 1, count, x.shape[-1]))
    rest = x[:, 1:].reshape(batch, steps - 1, count, x.shape[-1])
    return jnp.concatenate([first, rest], axis=1).swapaxes(1, 2)

  log_probs = of_tokens(jax.vmap(sampling.log_probs)(sampler.warper, logits))
  chosen = vocabulary.take(log_probs, drawn.tokens[..., None])[..., 0]
  return drawn.replace(
      log_probs=jnp.where(drawn.valid, chosen, 0).sum(axis=-1),
      own_log_probs=token_buffer.log_probs(of_tokens(logits), drawn.tokens),
      block=block, calls=drawn.valid.any(axis=(1, 2)).astype(jnp.int32))


def where(rows, new: Segments, old: Segments) -> Segments:
  """Returns the new segments in some rows `[B]`, the old ones elsewhere."""
  texts = lambda x: x.replace(block=None)
  return jax.tree.map(functools.partial(cache_lib.pick_rows, rows), texts(new),
                      texts(old)).replace(block=cache_lib.where(
                          rows, new.block, old.block))


def slots(chosen, sizes: Sizes):
  """Returns the slots `[B, T]` of a segment and the token before it."""
  steps = jnp.arange(sizes.steps, dtype=jnp.int32)[None]
  return jnp.where(steps == 0, 0,
                   1 + (steps - 1) * sizes.count + chosen[:, None])


def _mask(sizes: Sizes):
  """Returns `[M, M]` bool, the slots that each of M tokens attends to."""
  order = np.arange(sizes.count * (sizes.steps - 1))
  step, path = order // sizes.count, order % sizes.count
  mask = np.ones((1 + len(order), 1 + len(order)), bool)
  mask[0, 1:] = False
  mask[1:, 1:] = (path[:, None] == path) & (step[:, None] >= step)
  return jnp.asarray(mask)


def _forward(sampler: Sampler, tokens, depth, block, slot, mask):
  """Runs a model on tokens `[B, T]` so far after the newest one, mask `[T, N]`.
  """
  positions = jnp.broadcast_to(
      sampler.cache.length[:, None] + jnp.reshape(depth, (1, -1)),
      tokens.shape)
  return sampler.model.forward(
      sampler.params, tokens, positions, sampler.cache, block, slot,
      jnp.broadcast_to(mask[None], (len(tokens), *mask.shape)))
