"""Wraps a model and a logits processor as one language model.

The processor's state after each token is kept in the cache, as a feature of
that token. So it is drafted, scored, committed and dropped with the keys, and
every method works unchanged; the distribution that is preserved is that of the
processed model.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax import programs
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import (AppliedParams, LanguageModel,
                                LogitsProcessor, NONE, with_forward)
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
  form = _kind(jax.eval_shape(reader.init, processor_params))
  return _language_model(reader, form, lm), AppliedParams(params,
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


@programs.memoized
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
        "at least one is needed, and all of them of one type.")

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
  one, the last of the prompt, is not read."""
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
def _language_model(reader, form, lm):
  @functools.cache
  def name():
    # Not earlier: a model on a mesh makes its caches inside of it alone.
    return cache_lib.unused("processor", cache_lib.shapes(lm).features)

  def inner(x):
    """Returns the cache or the block of the model, and the states."""
    features = dict(x.features)
    states = features.pop(name())
    own = x.replace(features=features)
    if getattr(x, "shared", None):
      own = own.replace(shared=inner(x.shared)[0])
    return own, states

  def outer(x, states):
    return x.replace(features={**x.features, name(): states})

  def init_cache(batch, capacity):
    states = [jnp.zeros((batch, capacity, *shape), dtype)
              for shape, dtype in zip(form.shapes, form.dtypes)]
    return outer(lm.init_cache(batch, capacity),
                 jax.tree.unflatten(form.structure, states))

  def run(forward, params, tokens, positions, cache, block, slot, mask,
          *packed):
    start, shared = reader.init(params.processor), cache.shared
    count = cache.length - cache_lib.num_shared(cache)
    if shared:
      start = jax.tree.map(lambda x: x[0, -1], inner(shared)[1])
    (cache, before), (block, states) = inner(cache), inner(block)
    logits, block = forward(params.model, tokens, positions, cache, block, slot,
                            mask, *packed)
    last = jax.tree.map(functools.partial(_last, count), before, start)
    states = _advance(reader, params.processor, tokens, slot, mask, states,
                      last)
    process = functools.partial(
        _each_token(functools.partial(_process, reader, params.processor)),
        _own(states, slot, tokens.shape[1]))
    return jax.tree.map(process, logits), outer(block, states)

  def after_prompt(params, cache):
    whole, (cache, states) = cache, inner(cache)
    if lm.after_prompt:
      cache = lm.after_prompt(params.model, cache)

    def waiting(states):
      return states if reader.reads_prompt else jax.tree.map(
          lambda old, x: jnp.broadcast_to(x, old.shape), states,
          reader.init(params.processor))

    if whole.shared:
      cache = cache.replace(shared=outer(cache.shared, waiting(
          inner(whole.shared)[1])))
    return outer(cache, waiting(states))

  def abstract_params():
    model = lm.abstract_params() if lm.abstract_params else ...
    return AppliedParams(model, processor=...)

  return with_forward(
      lm, lambda forward: functools.partial(run, forward),
      init_cache=init_cache, after_prompt=after_prompt,
      abstract_params=abstract_params, halves=None)


def _advance(reader, params, tokens, slot, mask, states, last):
  """Returns the states `[B, N, ...]` of a block, fresh tokens included. The
  parent of a token is the last of its ancestors in the block, or the last token
  of the cache. Fresh tokens of one depth are independent of each other."""
  slots = jnp.arange(mask.shape[-1])[None, None]
  own = slot + jnp.arange(tokens.shape[1])
  above = mask & (slots != own[None, :, None])
  parents = _parents(above)
  if reader.advance_block:
    new = reader.advance_block(
        params, _of_parents(parents, states, last), tokens,
        jnp.where(parents >= slot, parents - slot, NONE))
    return _write(states, new, slot)
  depths = (above & (slots >= slot)).sum(axis=-1)
  step = _each_token(functools.partial(reader.advance, params))

  def level(depth, states):
    new = step(_of_parents(parents, states, last), tokens)
    return _write(states, jax.tree.map(
        functools.partial(_where, depths == depth), new,
        _own(states, slot, len(own))), slot)

  return jax.lax.fori_loop(0, depths.max() + 1, level, states)


def _own(states, slot, count):
  """Returns the states `[B, T, ...]` of fresh tokens, from a block's."""
  return jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(
      x, slot, count, 1), states)


def _write(states, new, slot):
  return jax.tree.map(lambda x, y: jax.lax.dynamic_update_slice_in_dim(
      x, y, slot, 1), states, new)


def _of_parents(parents, states, last):
  """Returns the states `[B, T, ...]` of parents, in the block or before it."""
  def of_parents(x, last):
    above = jax.vmap(lambda x, i: x[i])(x, jnp.maximum(parents, 0))
    return _where(parents >= 0, above, last[:, None])

  return jax.tree.map(of_parents, states, last)


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


def _last(lengths, states, init):
  """Returns the state `[B, ...]` after each row's slots; `init` if none."""
  init = jnp.broadcast_to(init, (len(lengths), *states.shape[2:]))
  if not states.shape[1]:
    return init
  last = jax.vmap(lambda x, n: x[n])(states, jnp.maximum(lengths - 1, 0))
  return _where(lengths > 0, last, init)


def _where(rows, x, y):
  return jnp.where(rows.reshape(*rows.shape, *(1,) * (x.ndim - rows.ndim)),
                   x, y)


def _each_token(function):
  """Maps a function of one token over `[B, T, ...]`."""
  return jax.vmap(jax.vmap(function))


def _kind(state) -> _Kind:
  leaves, structure = jax.tree.flatten(state)
  return _Kind(structure, tuple(x.shape for x in leaves),
               tuple(jnp.dtype(x.dtype) for x in leaves))
