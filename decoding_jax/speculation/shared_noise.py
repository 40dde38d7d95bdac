"""Keys of the Gumbel noise by which drafter and target draw the same tokens."""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import random
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import DecodeState, Draws, Expander

# Not the number of any step, by which a row's key is folded elsewhere.
_STREAM = 2**32 - 1


def noise_keys(keys, length, depth: int):
  """Returns `[B, D + 1]` keys of the Gumbel vectors of the next positions.
  Level 0, 1, ..., D of a tree has one each, which is the position's
  whichever step comes to it. `keys [B]` are the rows', unchanged by steps."""
  streams = jax.vmap(random.fold_in, (0, None))(keys, jnp.uint32(_STREAM))
  positions = length[:, None] + jnp.arange(depth + 1)[None]
  return jax.vmap(jax.vmap(random.fold_in, (None, 0)))(streams, positions)


def keys_for(expander: Expander, state: DecodeState):
  """Returns the `noise_keys` of a tree that an expander grows now, or None."""
  if expander.draws != Draws.SHARED_NOISE:
    return None
  return noise_keys(state.keys, state.length, tree_lib.depth(expander.layout))
