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
  """Seconds of a forward.

  Attributes:
    tokens: ascending, fresh tokens of a row.
    seconds: of each, the median of several rounds.
    least, most: of the rounds.
  """
  tokens: tuple[int, ...]
  seconds: tuple[float, ...]
  least: tuple[float, ...]
  most: tuple[float, ...]

  def at(self, tokens) -> float:
    """Interpolates the seconds for a number of fresh tokens linearly."""
    return float(np.interp(tokens, self.tokens, self.seconds))


def measure(lm, params, batch, live_length, slots, tokens=None,
            rounds=None, room=None) -> Curve:
  """Times forwards over a cache.

  Args:
    lm: a language model.
    params: its parameters.
    batch: B.
    live_length: committed tokens of each row.
    slots: S, of the cache.
    tokens: numbers of fresh tokens of a row; None for `TOKENS`.
    rounds: timings of each; None for `ROUNDS`.
    room: `(tokens) -> T` of a target that packs the tokens of all rows, so many
      of a row on average, perhaps a fraction; a row has at most T. None for as
      many in each row.

  Returns:
    A `Curve`.
  """
  tokens = tuple(sorted(set(tokens or TOKENS)))
  timers = [timer(lm, params, batch, live_length, slots,
                  room(size) if room else size,
                  round(size * batch) if room else 0) for size in tokens]
  found = np.array([[timer() for timer in timers]
                    for _ in range(rounds or ROUNDS)])
  return Curve(tokens, *(tuple(f(found, axis=0).tolist())
                         for f in (np.median, np.min, np.max)))


def timer(lm, params, batch, live_length, slots, size, packed=0):
  """Compiles forwards of one size, and returns a function that times them.

  Args:
    lm: a language model.
    params: its parameters.
    batch: B.
    live_length: committed tokens of each row.
    slots: S, of the cache.
    size: T, fresh tokens of each row.
    packed: how many of them all, those of a target that packs; 0 for all.

  Returns:
    Function without arguments that returns the seconds of one forward.
  """
  cache = lm.init_cache(batch, slots)
  cache = cache.replace(length=jnp.full(batch, live_length, jnp.int32))
  # Equal tokens would choose the same experts.
  fresh = jnp.asarray(np.random.default_rng(0).integers(
      lm.vocab_size, size=(batch, size), dtype=np.int32))
  packing = (np.linspace(0, fresh.size - 1, packed, dtype=np.int32),
             ) if packed else ()

  def seconds(count):
    return stopwatch.timed(_forwards, lm, params, cache, fresh, count,
                           *packing)[1] / count

  seconds(1)
  count = max(1, int(_SPAN / seconds(1)))
  return functools.partial(seconds, count)


@functools.partial(programs.jit, static_argnums=(0,))
def _forwards(lm, params, cache, fresh, count, *packing):
  size = fresh.shape[1]
  positions = cache.length[:, None] + jnp.arange(size)[None]
  mask = jnp.broadcast_to(jnp.tril(jnp.ones((size, size), bool)),
                          (*fresh.shape, size))

  def step(_, tokens):
    block = cache_lib.init_block(cache, size)
    logits, _ = lm.forward(params, tokens, positions, cache, block, 0, mask,
                           *packing)
    # Barrier: keeps XLA from dropping the logits that nothing reads.
    logits = jax.lax.optimization_barrier(logits)
    return cache_lib.await_logits(tokens, logits)

  return jax.lax.fori_loop(0, count, step, fresh)
