"""Measures the cost of a forward by its number of fresh tokens.

Forwards run in a loop of one compiled program, each after the one before, as in
a generation. Sizes take turns, so that a drift of the machine affects all.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import programs
from decoding_jax.runtime import cache as cache_lib
from experiments.timing import stopwatch

TOKENS = (1, 2, 4, 8, 16, 32)
ROUNDS = 7
# Approximate seconds of one timing.
_SPAN = 0.1


class Curve(NamedTuple):
  """Seconds of a forward by fresh tokens of a row."""
  tokens: tuple[int, ...]  # Ascending.
  seconds: tuple[float, ...]  # Medians of several rounds; then their range.
  least: tuple[float, ...]
  most: tuple[float, ...]

  def at(self, tokens) -> float:
    """Interpolates the seconds for a number of fresh tokens linearly."""
    return float(np.interp(tokens, self.tokens, self.seconds))


def measure(lm, params, batch, live_length, slots, tokens=None,
            rounds=None) -> Curve:
  """Times forwards of `tokens` fresh tokens a row (None for `TOKENS`).

  A cache of S = `slots` slots has `live_length` committed tokens of each of
  the `batch` rows; `rounds` are timings of each size, None for `ROUNDS`.
  """
  tokens = tuple(sorted(set(tokens or TOKENS)))
  timers = [timer(lm, params, batch, live_length, slots, size)
            for size in tokens]
  seconds = np.array([[timer() for timer in timers]
                      for _ in range(rounds or ROUNDS)])
  return Curve(tokens, *(tuple(f(seconds, axis=0).tolist())
                         for f in (np.median, np.min, np.max)))


def timer(lm, params, batch, live_length, slots, size):
  """Compiles forwards of `size` tokens a row; returns `() -> seconds` of one.
  """
  cache = lm.init_cache(batch, slots)
  cache = cache.replace(length=jnp.full(batch, live_length, jnp.int32))
  # Equal tokens would choose the same experts.
  fresh = jnp.asarray(np.random.default_rng(0).integers(
      lm.vocab_size, size=(batch, size), dtype=np.int32))

  def seconds(count):
    return stopwatch.timed(_forwards, lm, params, cache, fresh,
                           count)[1] / count

  seconds(1)
  return functools.partial(seconds, max(1, int(_SPAN / seconds(1))))


@functools.partial(programs.jit, static_argnums=(0,))
def _forwards(lm, params, cache, fresh, count):
  size = fresh.shape[1]
  positions = cache.length[:, None] + jnp.arange(size)[None]
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((size, size), bool)),
                          (*fresh.shape, size))

  def step(_, tokens):
    block = cache_lib.init_block(cache, size)
    logits, _ = lm.forward(params, tokens, positions, cache, block, 0, mask)
    # Barrier: keeps XLA from dropping the logits that nothing reads.
    logits = jax.lax.optimization_barrier(logits)
    return cache_lib.await_logits(tokens, logits)

  return jax.lax.fori_loop(0, count, step, fresh)
