"""Measures the cost of a forward by its number of fresh tokens.

Forwards run in a loop of one compiled program, each after the one before, as in
a generation. Sizes take turns, so that a drift of the machine affects all.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import programs
from decoding_jax.runtime import cache as cache_lib
from experiments.timing import stopwatch

_ROUNDS = 7
# Approximate seconds of one timing.
_SPAN = 0.1


def measure(lm, params, batch, live_length, slots, tokens) -> list[float]:
  """Returns median seconds of forwards of `tokens` fresh tokens a row, with
  `live_length` committed tokens in a cache of `slots` slots.
  """
  timers = [timer(lm, params, batch, live_length, slots, size)
            for size in tokens]
  return np.median([[timer() for timer in timers] for _ in range(_ROUNDS)],
                   axis=0).tolist()


def timer(lm, params, batch, live_length, slots, size):
  """Compiles forwards of `size` tokens a row; returns `() -> seconds each`."""
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
