"""The drafter that asks a language model for each level of its tree."""

import functools

import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.speculation import expanders, shared_gumbel
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import (Block, Cache, Context, DecodeState, Drafter,
                                DraftTree, Expander, Seen)


@functools.lru_cache(maxsize=None)
def of_model(expander: Expander) -> Drafter:
  """The drafter that grows its tree by `dj.generate`'s draft model.

  Its state is the draft model's cache, `DecodeState.draft_cache`.

  Args:
    expander: grows the tree level by level.

  Returns:
    The drafter.
  """
  return Drafter(
      expander.layout, _init, functools.partial(_propose, expander), _observe,
      calls=tree_lib.depth(expander.layout), sampled=expander.sampled,
      replacement=expander.replacement, one_sampled=expander.one_sampled,
      shared_noise=expander.shared_noise)


def _init(context: Context, state: DecodeState) -> DecodeState:
  del context
  return state


def _propose(expander, keys, context: Context,
             state: DecodeState) -> tuple[DraftTree, Block | None]:
  noise_keys = None
  if expander.shared_noise:
    noise_keys = shared_gumbel.noise_keys(state.keys, state.length,
                                          tree_lib.depth(expander.layout))
  return expanders.grow(
      keys, expander, context.draft, context.draft_params, state.draft_cache,
      token_buffer.newest(state, 2), state.length, context.draft_warper,
      noise_keys)


def _observe(context: Context, before: DecodeState, after: DecodeState,
             seen: Seen) -> DecodeState:
  del context
  return after.replace(draft_cache=commit(before, seen.pending,
                                          seen.verdict.path, seen.count))


def commit(state: DecodeState, block: Block | None, path,
           count) -> Cache | None:
  """Commits the late token, if there is one, the root, and inner nodes.

  Nodes of the last level are not in the block: where one is accepted, the
  draft cache falls one token short, which the next root level makes good.

  Args:
    state: before anything is committed.
    block: of `expanders.grow`, or None for a tree of a root.
    path: `[B, D + 1]` int32, nodes from the root on.
    count: `[B]` int32, how many of them count.

  Returns:
    The draft cache; all of the path is in it, what does not count after its
    length.
  """
  if block is None:
    return None
  depth = path.shape[1] - 1
  late = state.length - 1 - state.draft_cache.length
  slots = jnp.concatenate([jnp.zeros_like(path[:, :1]), 1 + path[:, :-1]], 1)
  order = jnp.arange(depth + 1)[None] + 1 - late[:, None]
  slots = buffers.take_along(slots, jnp.minimum(order, depth), axis=1)
  count = jnp.where(count > 0, late + jnp.minimum(count, depth), 0)
  return cache_lib.commit(state.draft_cache, block, slots, count)
