"""Caches that grow: a step's cost follows the length, not the token budget.

Caches begin small and double when full; each size is compiled on first use.
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Cache, DecodeState

# Slots for new tokens to begin with. Fewer would hardly make a step faster, and
# there would be more to compile.
_ROOM = 512
_FACTOR = 2


def initial_slots(least, full, shared=0) -> int:
  """Returns slots to begin with: `full`, or less if that is much less. `least`
  are needed by the prompts and one step; `shared` are kept once."""
  own = cache_lib.round_up(least - shared + _ROOM)
  return shared + own if shared + _FACTOR * own <= full else full


def next_slots(slots, full, shared=0) -> int:
  """Slots after `slots`, which are full."""
  return min(shared + _FACTOR * (slots - shared), full)


def grow(state: DecodeState, slots) -> DecodeState:
  """Returns the state with caches of more slots, shared ones included. They
  grow array by array, so that few of them are there twice at a time; the old
  arrays are deleted."""
  def wider(x):
    if not isinstance(x, Cache):
      return x
    grown = functools.partial(_grown, slots - cache_lib.num_shared(x))
    return cache_lib.with_arrays(x, cache_lib.map_arrays(grown, x))

  caches = jax.tree.map(
      wider, (state.target_cache, state.draft_cache, state.carry),
      is_leaf=cache_lib.is_cache)
  return state.replace(target_cache=caches[0], draft_cache=caches[1],
                       carry=caches[2])


def _grown(slots, x, _, slot_axis):
  wide = _pad(x, slots, slot_axis)
  x.delete()
  return wide


@functools.partial(jax.jit, static_argnums=(1, 2))
def _pad(x, slots, axis):
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, slots - x.shape[axis])
  return jnp.pad(x, widths)
