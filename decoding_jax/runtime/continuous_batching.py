"""A queue of prompts: a row that has finished makes room for the next one.

The next prompt is prefilled in chunks within the target forward that scores
other rows' trees (chunked prefill, Sarathi, arXiv 2308.16369):

    row   target forward of a step        commits
    0     a tree of M nodes               its accepted path
    1     the next W tokens of a prompt   all of them, to the caches alone

Steps are W >= M tokens wide while a row joins, else M. Methods without such a
forward prefill some rows together while the others wait.
"""

import functools
from typing import Any, Callable

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib, prefill, token_buffer
from decoding_jax.types import (Array, Cache, Context, DecodeState, Decoder,
                                LanguageModel)

# Rows are refilled once one in `_PART` has finished. One at a time would cost a
# prefill each; more would wait longer for each other.
_PART = 4
# A step that scores fewer nodes of a row takes long to read a prompt: unless
# wider steps are asked for, that costs more steps than it saves the others.
LEAST_CHUNK = 5


def refilled(rows: int) -> int:
  """Returns how many of B rows are refilled together."""
  return max(1, rows // _PART)


@flax.struct.dataclass
class _Queue:
  """The carry of the loop over chunks and steps."""
  # Of the B rows; a row that joins is done, and its text the last one. Its
  # caches hold what has been read of the next prompt.
  state: DecodeState
  members: Array  # `[B]` int32, the prompt of each row
  joins: Array  # `[B]` bool, rows that read their prompt
  taken: Array  # `[]` int32, prompts that have a row, or had one
  steps: Array  # `[]` int32


def run_chunked(decoder: Decoder, context: Context, keys, rows: int, width: int,
                begin: Callable[..., DecodeState],
                start: Callable[..., DecodeState]) -> tuple[DecodeState, Any]:
  """Generates for all R prompts; a row that joins does not stop the others.

  `rows` = B < R rows are decoded together, the first B prefilled together;
  `keys` are `[R]`. `width` = W are the tokens of a chunk, at least the nodes of
  a tree. `begin` is `(context, keys) -> state`, `start` the same of prefilled
  caches, `(context, caches, keys) -> state`. Returns the last states of R rows,
  without caches and carry, and the steps of the loop.
  """
  total = len(keys)
  members = jnp.arange(rows, dtype=jnp.int32)
  queue = _Queue(begin(_take(context, members), keys[:rows]), members,
                 jnp.zeros(rows, bool), jnp.int32(rows), jnp.int32(0))
  results = jax.tree.map(lambda x: jnp.zeros((total, *x.shape[1:]), x.dtype),
                         token_buffer.result(queue.state))

  def rounds(carry):
    queue, results = carry
    queue = _enter(queue, total)
    # Constant as long as no row gets another prompt.
    own = _take(context, queue.members)
    goes_on = lambda queue: ~(
        # A row is free, and a prompt waits for one.
        ((queue.state.done & ~queue.joins).any() & (queue.taken < total))
        # A row has read its prompt, so that its text can begin.
        | _has_read(queue, own).any())
    # Three loops, since a step is W tokens wide only while some row reads.
    queue = jax.lax.while_loop(
        lambda queue: _has_read(queue, own).any(),
        functools.partial(_start, own, keys, start), queue)
    queue = jax.lax.while_loop(
        lambda queue: goes_on(queue) & queue.joins.any(),
        functools.partial(_step_and_read, decoder, own, width), queue)
    queue = jax.lax.while_loop(
        lambda queue: goes_on(queue) & ~queue.joins.any()
        & ~queue.state.done.all(), lambda queue: queue.replace(
            state=decoder.step(own, queue.state), steps=queue.steps + 1), queue)
    # What a row that joins had before is there already, and goes elsewhere.
    at = jnp.where(queue.joins, total, queue.members)
    return queue, jax.tree.map(lambda all_, x: all_.at[at].set(x, mode="drop"),
                               results, token_buffer.result(queue.state))

  def unfinished(carry):
    queue, _ = carry
    # A row that joins is done as far as its last text goes.
    return (~queue.state.done.all() | (queue.taken < total)
            | queue.joins.any())

  queue, results = jax.lax.while_loop(unfinished, rounds, (queue, results))
  return queue.state.replace(target_cache=None, draft_cache=None, carry=None,
                             **results), queue.steps


def _enter(queue: _Queue, total) -> _Queue:
  """Gives the next prompts to all rows that are done, with empty caches."""
  free = queue.state.done & ~queue.joins
  new = queue.taken + jnp.cumsum(free, dtype=jnp.int32) - 1
  enters = free & (new < total)
  empty = lambda cache: cache and cache.replace(
      length=jnp.where(enters, cache_lib.num_shared(cache), cache.length))
  state = queue.state
  return queue.replace(
      state=state.replace(target_cache=empty(state.target_cache),
                          draft_cache=empty(state.draft_cache)),
      members=jnp.where(enters, new, queue.members),
      joins=queue.joins | enters,
      taken=queue.taken + enters.sum(dtype=jnp.int32))


def _has_read(queue: _Queue, context: Context):
  """`[B]` bool, rows that join and have read all but the last token."""
  return queue.joins & (
      queue.state.target_cache.length >= context.prompt_lengths - 1)


def _start(context: Context, keys, start, queue: _Queue) -> _Queue:
  """Begins the text of a row that has read its prompt."""
  state = queue.state
  row = jnp.argmax(_has_read(queue, context))[None]
  caches = tuple(_end_prompt(*model, row) for model in _models(context, state))
  caches = (*caches, None)[:2]
  fresh = start(_take(context, row),
                tuple(cache and cache_lib.take_rows(cache, row)
                      for cache in caches), keys[queue.members[row]])
  # The row's part of the caches is where it belongs.
  bare = lambda state: state.replace(target_cache=None, draft_cache=None)
  return queue.replace(
      state=put(bare(state), row, bare(fresh)).replace(
          target_cache=caches[0], draft_cache=caches[1]),
      joins=queue.joins.at[row].set(False))


def _models(context: Context, state: DecodeState):
  """Returns model, parameters and cache of the target and of a draft model."""
  models = [(context.target, context.target_params, state.target_cache)]
  if state.draft_cache is not None:
    models.append((context.draft, context.draft_params, state.draft_cache))
  return models


def _end_prompt(model: LanguageModel, params, cache: Cache, row) -> Cache:
  """Does in one row what is done to a cache after all of a prompt."""
  if model.after_prompt is None:
    return cache
  return cache_lib.put_rows(cache, row, model.after_prompt(
      params, cache_lib.take_rows(cache, row)))


def _step_and_read(decoder: Decoder, context: Context, width,
                   queue: _Queue) -> _Queue:
  """Takes a step, in which rows that join read more of their prompts."""
  state = queue.state
  cached = state.target_cache.length
  places = cached[:, None] + jnp.arange(width)[None]
  chunk = buffers.take_along(context.prompts, jnp.minimum(
      places, context.prompts.shape[1] - 1), axis=1)
  count = jnp.where(queue.joins, jnp.clip(
      context.prompt_lengths - 1 - cached, 0, width), 0)
  target = _with_chunks(context.target, queue.joins, chunk)
  state, seen = decoder.step_with_tree(context.replace(target=target), state)
  order = jnp.broadcast_to(jnp.arange(width), chunk.shape)
  state = state.replace(target_cache=cache_lib.commit(
      state.target_cache, seen.block, order, count))
  if state.draft_cache is not None:
    state = state.replace(draft_cache=prefill.extend(
        context.draft, context.draft_params, state.draft_cache, chunk, count))
  return queue.replace(state=state, steps=queue.steps + 1)


def _with_chunks(model: LanguageModel, joins, chunk) -> LanguageModel:
  """The model, but some rows read a chunk `[B, W]` instead of their tree. All
  trees are padded to W nodes, the added ones seeing themselves alone; the block
  always has W slots."""
  width = chunk.shape[1]
  order = jnp.arange(width)[None]

  def fill(x, mode="constant"):
    more = [(0, 0), *((0, width - size) for size in x.shape[1:])]
    return jnp.pad(x, more, mode)

  def forward(params, tokens, positions, cache, block, slot, mask):
    del block, slot  # The step's only call begins with an empty one.
    mask = fill(mask) | (order.T == order)[None]
    own = joins[:, None]
    logits, block = model.forward(
        params, jnp.where(own, chunk, fill(tokens, "edge")),
        jnp.where(own, cache.length[:, None] + order, fill(positions, "edge")),
        cache, cache_lib.init_block(cache, width), 0,
        jnp.where(own[:, None], (order.T >= order)[None], mask))
    return logits[:, :tokens.shape[1]], block

  return model._replace(forward=forward, packs=False)


def run(decoder: Decoder, context: Context, keys, rows: int,
        begin: Callable[..., DecodeState]) -> tuple[DecodeState, Any]:
  """Generates for all R prompts; rows that join stop the others. As
  `run_chunked`, but every row is prefilled by `begin`."""
  total, size = len(keys), refilled(rows)
  state = _empty(begin, context, keys, rows)
  spread = lambda x: jnp.zeros((total, *x.shape[1:]), x.dtype)
  results = jax.tree.map(spread, token_buffer.result(state))

  def refill(state, members, taken):
    """Replaces rows that are done by the next prompts."""
    places = jnp.argsort(~state.done)[:size]
    new = taken + jnp.arange(size, dtype=jnp.int32)
    valid = state.done[places] & (new < total)
    new = jnp.minimum(new, total - 1)
    fresh = begin(_take(context, new), keys[new])
    # What lies outside is not written.
    places = jnp.where(valid, places, rows)
    return (put(state, places, fresh),
            members.at[places].set(new, mode="drop"),
            taken + valid.sum(dtype=jnp.int32))

  def step(context, carry):
    state, steps = carry
    return decoder.step(context, state), steps + 1

  def rounds(carry):
    state, members, taken, steps, results = carry
    state, members, taken = refill(state, members, taken)
    # The context fits the rows as long as none of them is replaced.
    state, steps = jax.lax.while_loop(
        # Enough rows have finished: all, if no prompt waits.
        lambda x: ~jnp.where(taken < total, x[0].done.sum() >= size,
                             x[0].done.all()),
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


def _empty(begin, context, keys, rows) -> DecodeState:
  """Returns a state of rows that are done, and were never begun."""
  first = jnp.arange(rows)
  shapes = jax.eval_shape(lambda: begin(_take(context, first), keys[first]))
  zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype),
                       shapes.replace(keys=None))
  return zeros.replace(keys=keys[:rows], done=jnp.ones(rows, bool))


def _take(context: Context, rows) -> Context:
  """Returns the context of some rows."""
  take = functools.partial(jax.tree.map, lambda x: x[rows])
  return context.replace(**{
      name: take(getattr(context, name)) for name in
      ("warper", "draft_warper", "prompts", "prompt_lengths", "constraints")})


def put(state: DecodeState, rows, fresh: DecodeState) -> DecodeState:
  """Replaces some rows of a state; those beyond the last are left out."""
  def put(x, y):
    if isinstance(x, Cache):
      return cache_lib.put_rows(x, rows, y)
    return None if x is None else x.at[rows].set(y, mode="drop")

  return jax.tree.map(put, state, fresh, is_leaf=cache_lib.is_cache)
