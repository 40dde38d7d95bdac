"""A queue of prompts: a row that has finished makes room for the next one."""

import functools
from typing import Any, Callable

import jax
import jax.numpy as jnp

from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.types import Cache, Context, DecodeState, Decoder

# Part of the rows that are refilled together, when so many have finished. One
# at a time would cost a prefill each; more would wait longer for each other.
_PART = 4


def refilled(rows: int) -> int:
  """Rows that are refilled together.

  Args:
    rows: B, that are decoded together.
  """
  return max(1, rows // _PART)


def run(decoder: Decoder, context: Context, keys, rows: int,
        begin: Callable[..., DecodeState]) -> tuple[DecodeState, Any]:
  """Generates for all prompts, at most so many of them at a time.

  Args:
    decoder: what decodes.
    context: of R prompts.
    keys: `[R]` random keys.
    rows: B <= R, that are decoded together.
    begin: `(context, keys) -> state` of any rows, nothing being generated yet.

  Returns:
    The last state of each of the R rows, without caches and carry; and the
    steps of the loop.
  """
  total, size = len(keys), refilled(rows)
  state = _empty(begin, context, keys, rows)
  spread = lambda x: jnp.zeros((total, *x.shape[1:]), x.dtype)
  results = jax.tree.map(spread, token_buffer.result(state))

  def refill(state, members, taken):
    """Puts the next prompts in place of rows that are done."""
    places = jnp.argsort(~state.done)[:size]
    new = taken + jnp.arange(size, dtype=jnp.int32)
    valid = state.done[places] & (new < total)
    new = jnp.minimum(new, total - 1)
    fresh = begin(_take(context, new), keys[new])
    # What lies outside is not written.
    places = jnp.where(valid, places, rows)
    return (_put(state, places, fresh),
            members.at[places].set(new, mode="drop"),
            taken + valid.sum(dtype=jnp.int32))

  def step(context, carry):
    state, steps = carry
    return decoder.step(context, state), steps + 1

  def rounds(carry):
    state, members, taken, steps, results = carry
    state, members, taken = refill(state, members, taken)
    # The context is that of the rows as long as none of them is replaced.
    state, steps = jax.lax.while_loop(
        lambda x: ~_enough(x[0].done, taken < total, size),
        functools.partial(step, _take(context, members)), (state, steps))
    results = jax.tree.map(lambda all_, x: all_.at[members].set(x, mode="drop"),
                           results, token_buffer.result(state))
    return state, members, taken, steps, results

  members = jnp.full(rows, total, jnp.int32)
  _, _, _, steps, results = jax.lax.while_loop(
      lambda x: ~(x[0].done.all() & (x[2] == total)), rounds,
      (state, members, jnp.int32(0), jnp.int32(0), results))
  return state.replace(target_cache=None, draft_cache=None, carry=None,
                       **results), steps


def _enough(done, waiting, size):
  """Whether enough rows have finished: all, if no prompt waits for a place."""
  return jnp.where(waiting, done.sum() >= size, done.all())


def _empty(begin, context, keys, rows) -> DecodeState:
  """A state of rows that are done, and were never begun."""
  first = jnp.arange(rows)
  shapes = jax.eval_shape(lambda: begin(_take(context, first), keys[first]))
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                       shapes.replace(keys=None))
  return zeros.replace(keys=keys[:rows], done=jnp.ones(rows, bool))


def _take(context: Context, rows) -> Context:
  """The context of some rows."""
  take = functools.partial(jax.tree.map, lambda x: x[rows])
  return context.replace(**{
      name: take(getattr(context, name)) for name in
      ("warper", "draft_warper", "prompts", "prompt_lengths", "constraints")})


def _put(state: DecodeState, rows, fresh: DecodeState) -> DecodeState:
  """The state with some rows replaced; those beyond the last are left out."""
  def put(x, y):
    if isinstance(x, Cache):
      return cache_lib.put_rows(x, rows, y)
    return None if x is None else x.at[rows].set(y, mode="drop")

  return jax.tree.map(put, state, fresh, is_leaf=cache_lib.is_cache)
