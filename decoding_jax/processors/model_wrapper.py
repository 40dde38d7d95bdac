"""Wraps a model and a logits processor as one language model.

The processor's state after each token is kept in the cache, next to the keys of
that token: as one more array of keys, which nothing attends to. So it is
drafted, scored, committed and dropped with them, and every method works
unchanged; the distribution that is preserved is that of the processed model.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import (AppliedParams, LanguageModel,
                                LogitsProcessor, NONE)
from decoding_jax.validation import protocols, values


class _Kind(NamedTuple):
  """Structure, shapes and types of a state; hashable."""
  structure: Any
  shapes: tuple[tuple[int, ...], ...]
  dtypes: tuple[Any, ...]

  def __str__(self):
    return str(jax.tree.unflatten(self.structure, [
        f"{dtype}{list(shape)}"
        for dtype, shape in zip(self.dtypes, self.shapes)]))


def apply(processor: LogitsProcessor, processor_params, lm: LanguageModel,
          params) -> tuple[LanguageModel, AppliedParams]:
  """Returns a model and a processor as one model.

  To decode from the distribution of a constrained target, give `generate` the
  processed target. The drafter may be processed or not: if it is, more of its
  drafts are accepted.

  Args:
    processor: changes logits.
    processor_params: its parameters, `()` if it has none.
    lm: any model.
    params: its parameters.

  Returns:
    The model and its parameters. Equal processors of equal models are one
    object, and share compiled programs. Where a processor forbids every token
    that the model allows, logits stay as they are.

  Raises:
    ValueError: for arguments of other types, and for a processor whose state
      changes its shape, or of another vocabulary.
  """
  protocols.check("processor", LogitsProcessor, processor)
  protocols.check("lm", LanguageModel, lm)
  # Arrays on the host would be sent to the device at each call.
  processor_params = jax.tree.map(
      lambda x: jnp.asarray(values.array("processor_params", x)),
      processor_params)
  _check(processor, processor_params, lm.vocab_size)
  reader = (processor if processor.reads_prompt else
            _after_prompt_only(processor))
  kind = _kind(jax.eval_shape(reader.init, processor_params))
  return _language_model(reader, kind, lm), AppliedParams(params,
                                                          processor_params)


def _check(processor, params, vocab_size):
  before = jax.eval_shape(processor.init, params)
  after = jax.eval_shape(processor.advance, params, before,
                         jax.ShapeDtypeStruct((), jnp.int32))
  if _kind(after) != _kind(before):
    raise ValueError(
        f"LogitsProcessor.advance returned a state of {_kind(after)}: that of "
        f"LogitsProcessor.init, {_kind(before)}, is needed.")
  jax.eval_shape(functools.partial(_process, processor), params, before,
                 jax.ShapeDtypeStruct((vocab_size,), jnp.float32))


def chain(processors: Sequence[LogitsProcessor]) -> LogitsProcessor:
  """Returns a processor that applies several, one after the other.

  Args:
    processors: at least one; all of them read prompts, or none does.

  Returns:
    A processor; its parameters are the tuple of theirs, `()` for each that
    has none.

  Raises:
    ValueError: without processors, or if some read prompts and others do not:
      `apply` these one after the other.
  """
  if not isinstance(processors, Sequence):
    raise ValueError(f"processors is of type {type(processors).__name__}: a "
                     "list of processors is needed.")
  for i, x in enumerate(processors):
    protocols.check(f"processors[{i}]", LogitsProcessor, x)
  if len({x.reads_prompt for x in processors}) != 1:
    raise ValueError(
        f"processors with reads_prompt={[x.reads_prompt for x in processors]}: "
        "at least one is needed, and all of them of one kind.")
  return _chain(tuple(processors))


@functools.lru_cache(maxsize=None)
def _chain(processors):
  def init(params):
    # `zip` would silently leave out the processors without parameters.
    if not isinstance(params, (tuple, list)) or len(params) != len(processors):
      raise ValueError(
          f"processor_params of a chain: a tuple of {len(processors)} is "
          "needed, the parameters of each processor, () where it has none.")
    return tuple(x.init(param) for x, param in zip(processors, params))

  def process(params, states, logits):
    for x, param, state in zip(processors, params, states):
      logits = x.process(param, state, logits)
    return logits

  return LogitsProcessor(
      init=init,
      advance=lambda params, states, token: tuple(
          x.advance(param, state, token)
          for x, param, state in zip(processors, params, states)),
      process=process, reads_prompt=processors[0].reads_prompt)


@functools.lru_cache(maxsize=None)
def _after_prompt_only(processor):
  """Returns the processor with a further state, in which it waits.

  `after_prompt` gives it to all tokens of a prompt. The token after a waiting
  one, the last of the prompt, is not read.
  """
  def advance(params, state, token):
    waits, state = state
    read = processor.advance(params, state, token)
    return jnp.zeros_like(waits), jax.tree.map(
        functools.partial(jnp.where, waits), state, read)

  def advance_block(params, states, tokens, parents):
    waits, states = states
    # A parent that waits is the last of the prompt but one.
    unread = waits & (parents == NONE)
    return jnp.zeros_like(waits), processor.advance_block(
        params, states, jnp.where(unread, NONE, tokens), parents)

  return LogitsProcessor(
      init=lambda params: (jnp.bool_(True), processor.init(params)),
      advance=advance,
      process=lambda params, state, logits: processor.process(
          params, state[1], logits),
      advance_block=advance_block if processor.advance_block else None)


@functools.lru_cache(maxsize=None)
def _language_model(reader, kind, lm):
  count = len(kind.shapes)

  def split(x):
    """Returns the cache or the block of the model, and the states."""
    size = len(x.keys) - count
    inner = x.replace(keys=x.keys[:size])
    if getattr(x, "shared", None):
      inner = inner.replace(shared=split(x.shared)[0])
    return inner, x.keys[size:]

  def init_cache(batch, capacity):
    cache = lm.init_cache(batch, capacity)
    states = [jnp.zeros((batch, 1, math.prod(shape), capacity), dtype)
              for shape, dtype in zip(kind.shapes, kind.dtypes)]
    return cache.replace(keys=(*cache.keys, *states))

  def forward(params, tokens, positions, cache, block, slot, mask):
    init, shared = jax.tree.leaves(reader.init(params.processor)), cache.shared
    count = cache.length - cache_lib.num_shared(cache)
    if shared:
      init = [x[0, 0, :, -1].reshape(shape)
              for x, shape in zip(split(shared)[1], kind.shapes)]
    (cache, before), (block, states) = split(cache), split(block)
    logits, block = lm.forward(params.model, tokens, positions, cache, block,
                               slot, mask)
    states = _advance(reader, params.processor, tokens, slot, mask, [
        _unpack(x, shape) for x, shape in zip(states, kind.shapes)],
                      _last(before, count, kind, init), kind)
    own = [jax.lax.dynamic_slice_in_dim(x, slot, tokens.shape[1], 1)
           for x in states]
    logits = _each_token(functools.partial(_process, reader, params.processor))(
        jax.tree.unflatten(kind.structure, own), logits)
    return logits, block.replace(keys=(*block.keys, *map(_pack, states)))

  def after_prompt(params, cache):
    inner, states = split(cache)
    if lm.after_prompt:
      inner = lm.after_prompt(params.model, inner)
    init = jax.tree.leaves(reader.init(params.processor))

    def join(inner, states):
      if not reader.reads_prompt:
        states = [jnp.broadcast_to(x.reshape(-1, 1), old.shape)
                  for x, old in zip(init, states)]
      return inner.replace(keys=(*inner.keys, *states))

    if cache.shared:
      inner = inner.replace(shared=join(inner.shared, split(cache.shared)[1]))
    return join(inner, states)

  def abstract_params():
    model = lm.abstract_params() if lm.abstract_params else ...
    return AppliedParams(model, processor=...)

  return lm._replace(init_cache=init_cache, forward=forward,
                     after_prompt=after_prompt, abstract_params=abstract_params,
                     early_logits=None)


def _advance(reader, params, tokens, slot, mask, states, last, kind):
  """Returns the states `[B, N, ...]` of a block, fresh tokens included.

  The parent of a token is the last of its ancestors in the block, or the last
  token of the cache. Fresh tokens of one depth are independent of each other.
  """
  slots = jnp.arange(mask.shape[-1])[None, None]
  own = slot + jnp.arange(tokens.shape[1])
  above = mask & (slots != own[None, :, None])
  parents = _parents(above)
  if reader.advance_block:
    return _advance_at_once(reader, params, tokens, slot, parents, states, last,
                            kind)
  depths = (above & (slots >= slot)).sum(axis=-1)
  step = _each_token(functools.partial(reader.advance, params))

  def level(depth, states):
    new = step(jax.tree.unflatten(
        kind.structure, _of_parents(parents, states, last)), tokens)
    now = depths == depth
    return [jax.lax.dynamic_update_slice_in_dim(
        x, _where(now, y, jax.lax.dynamic_slice_in_dim(x, slot, len(own), 1)),
        slot, 1) for x, y in zip(states, jax.tree.leaves(new))]

  return jax.lax.fori_loop(0, depths.max() + 1, level, states)


def _advance_at_once(reader, params, tokens, slot, parents, states, last, kind):
  """Returns the states of a block by a single call of `advance_block`."""
  before = jax.tree.unflatten(kind.structure,
                              _of_parents(parents, states, last))
  new = reader.advance_block(params, before, tokens,
                             jnp.where(parents >= slot, parents - slot, NONE))
  return [jax.lax.dynamic_update_slice_in_dim(x, y, slot, 1)
          for x, y in zip(states, jax.tree.leaves(new))]


def _of_parents(parents, states, last):
  """Returns the states `[B, T, ...]` of parents, in the block or before it."""
  def of_parents(x, last):
    found = jax.vmap(lambda x, i: x[i])(x, jnp.maximum(parents, 0))
    return _where(parents >= 0, found, last[:, None])

  return list(map(of_parents, states, last))


def _parents(above):
  """Returns the last of the ancestors `[B, T, N]`: `[B, T]`; -1 for none."""
  return jnp.max(jnp.where(above, jnp.arange(above.shape[-1]), -1), axis=-1)


def _process(reader, params, state, logits):
  new = reader.process(params, state, logits)
  if jnp.shape(new) != logits.shape:
    raise ValueError("LogitsProcessor.process returned logits of shape "
                     f"{jnp.shape(new)}: [V]={logits.shape} is needed.")
  # If all were forbidden, the distribution would be NaN.
  return jnp.where((new > -jnp.inf).any(), new, logits).astype(logits.dtype)


def _last(before, lengths, kind, init):
  """Returns the states `[B, ...]` after each row's slots; `init` if none."""
  def of_rows(x, shape, init):
    init = jnp.broadcast_to(init, (len(lengths), *shape))
    if not x.shape[-1]:
      return init
    last = jax.vmap(lambda x, n: x[0, :, n])(x, jnp.maximum(lengths - 1, 0))
    return _where(lengths > 0, last.reshape(init.shape), init)

  return list(map(of_rows, before, kind.shapes, init))


def _where(rows, x, y):
  return jnp.where(rows.reshape(*rows.shape, *(1,) * (x.ndim - rows.ndim)),
                   x, y)


def _each_token(function):
  """Maps a function of one token over `[B, T, ...]`."""
  return jax.vmap(jax.vmap(function))


def _pack(x):
  """Returns `[B, N, ...]` in the layout of keys, `[B, 1, C, N]`."""
  return x.reshape(*x.shape[:2], -1).swapaxes(1, 2)[:, None]


def _unpack(x, shape):
  return x[:, 0].swapaxes(1, 2).reshape(x.shape[0], x.shape[3], *shape)


def _kind(state) -> _Kind:
  leaves, structure = jax.tree.flatten(state)
  return _Kind(structure, tuple(x.shape for x in leaves),
               tuple(jnp.dtype(x.dtype) for x in leaves))
