"""Fills canvases of a masked-diffusion language model, in one compiled loop."""

import functools
from typing import Optional

import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax import programs
from decoding_jax import sampling as sampling_lib
from decoding_jax.canvas import confidence as confidence_lib
from decoding_jax.canvas import checks, forward, places
from decoding_jax.canvas.types import Context, Filled, Method, State
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import MaskedModel, NONE, Params
from decoding_jax.validation import keys as keys_lib
from decoding_jax.validation import values


def generate(key, prompts, prompt_lengths, *, method: Method,
             model: MaskedModel, params: Params, length: int, block: int,
             sampling: sampling_lib.Sampling = sampling_lib.Sampling(0.0),
             confidence=confidence_lib.probability,
             eos_id: Optional[int] = None, method_params: Params = None,
             canvases=None, cache: bool = False,
             traced: bool = False) -> Filled:
  """Fills a canvas after each prompt, block after block from left to right.

  Rows have blocks, confidences and ends of their own: a row's tokens depend on
  its key and prompt alone.

  Args:
    key: a random key; row i uses `fold_in(key, i)`. Or `[B]` keys, one a row.
    prompts: `[B, P]` int32, right-padded.
    prompt_lengths: `[B]` int32, in 1..P.
    method: of `canvas.methods`, or one's own.
    model: a `MaskedModel`.
    params: its parameters.
    length: L, positions of each canvas.
    block: S, positions that may be filled at a time; divides L.
    sampling: at temperature 0 each position gets its most probable token; above
      it a token is drawn by Gumbel noise, the same at each step.
    confidence: a function of `canvas.confidence`, or one's own.
    eos_id: token after which nothing counts; None if there is none.
    method_params: parameters of the method's rule; None if it has none.
    canvases: `[B, L]` int32 to begin with, mask tokens where they are to be
      filled; None for masks alone.
    cache: whether keys and values outside of the current block are kept while
      it is filled, see `canvas.forward`.
    traced: whether confidences and tokens of each forward are returned.
  """
  prompts = values.array("prompts", prompts)
  prompt_lengths = values.array("prompt_lengths", prompt_lengths)
  checks.check(prompts, prompt_lengths, method=method, model=model,
               params=params, length=length, block=block, eos_id=eos_id,
               method_params=method_params, canvases=canvases, cache=cache)
  kernels.prepare()  # Before anything is traced that may call them.
  batch, vocab_size = len(prompts), model.language_model.vocab_size
  prompts, padding = _left_padded(prompts, prompt_lengths)
  context = Context(
      model=model, params=params, method=method, method_params=method_params,
      confidence=confidence, block=int(block),
      warper=sampling_lib.make_warper(sampling, batch, vocab_size),
      keys=keys_lib.of_rows(key, batch), prompts=prompts,
      padding=padding,
      eos_id=jnp.int32(NONE if eos_id is None else eos_id))
  if canvases is None:
    canvases = jnp.full((batch, length), model.mask_id, jnp.int32)
  return _generate(cache, traced, context, jnp.asarray(canvases, jnp.int32))


@jax.jit
def _left_padded(prompts, lengths):
  """Moves right-padded prompts `[B, P]` to the end; returns padding `[B]`."""
  padding = (prompts.shape[1] - lengths).astype(jnp.int32)
  moved = jax.vmap(jnp.roll)(prompts.astype(jnp.int32), padding)
  inside = jnp.arange(prompts.shape[1])[None] >= padding[:, None]
  return jnp.where(inside, moved, 0), padding


@functools.partial(programs.jit, static_argnums=(0, 1))
def _generate(cache, traced, context: Context, canvases) -> Filled:
  state = jax.lax.while_loop(
      lambda state: places.is_open(context, state.canvas).any(),
      functools.partial(_step, context), _state(cache, traced, context,
                                                canvases))
  tokens, lengths = places.ended(context, state.canvas)
  return Filled(tokens, lengths, state.filled_at, state.forwards,
                state.whole_forwards, state.steps, state.trace)


def _state(cache, traced, context: Context, canvases) -> State:
  batch, length = canvases.shape
  zeros, none = jnp.zeros(batch, jnp.int32), jnp.full(batch, NONE, jnp.int32)
  number = context.method.drafts
  # No method takes more forwards than there are positions.
  trace = (jnp.zeros((batch, length, length), jnp.float32),
           jnp.full((batch, length, length), NONE, jnp.int32))
  return State(
      canvas=canvases, drafts=jnp.repeat(canvases[:, None], number, axis=1),
      filled_at=jnp.full(canvases.shape, NONE, jnp.int32), forwards=zeros,
      whole_forwards=zeros, steps=zeros, trace=trace if traced else None,
      store=forward.empty_store(context, length) if cache else None,
      stored=none if cache else None)


def _step(context: Context, state: State) -> State:
  """One forward of all drafts, and all steps of the rule that they confirm."""
  running = places.is_open(context, state.canvas).any(axis=1)
  state, logits = _logits(context, state, running)
  tokens, confidence = places.candidates(context, logits)
  advance = functools.partial(_advance, context, places.block_start(
      context, state.canvas) if state.store is not None else None)
  targets = advance(state.drafts, tokens, confidence)
  best = _confirmed(state.drafts, targets)
  take = lambda x: jax.vmap(lambda x, i: x[i])(x, best)
  canvas, tokens, confidence = take(targets), take(tokens), take(confidence)
  drafts = [canvas]
  for _ in range(context.method.drafts - 1):
    drafts.append(advance(*(x[:, None] for x in (
        drafts[-1], tokens, confidence)))[:, 0])
  trace = state.trace
  if trace is not None:
    put = jax.vmap(lambda x, y, at: x.at[at].set(y, mode="drop"))
    at = jnp.where(running, state.forwards, canvas.shape[1])
    trace = put(trace[0], confidence, at), put(trace[1], tokens, at)
  # A draft that is whole has no step after it.
  moved = (canvas != take(state.drafts)).any(axis=1)
  fresh = canvas != state.canvas
  return state.replace(
      canvas=canvas, drafts=jnp.stack(drafts, axis=1), trace=trace,
      filled_at=jnp.where(fresh, state.forwards[:, None], state.filled_at),
      forwards=state.forwards + running.astype(jnp.int32),
      steps=state.steps + jnp.where(running, best + moved.astype(jnp.int32),
                                    0))


def _advance(context: Context, start, canvases, tokens, confidence):
  """Returns canvases `[B, D, L]` after a step of the rule. With a cache, a
  draft that is through with its block `[B]` waits."""
  advanced = jax.vmap(jax.vmap(functools.partial(places.advance, context)))(
      canvases, tokens, confidence)
  if start is None:
    return advanced
  reads = places.block_start(context, canvases) == start[:, None]
  return jnp.where(reads[:, :, None], advanced, canvases)


def _confirmed(drafts, targets):
  """Returns `[B]`, the last draft that steps from the first one reach."""
  agrees = (drafts[:, 1:] == targets[:, :-1]).all(axis=-1)
  moves = (drafts[:, 1:] != drafts[:, :-1]).any(axis=-1)
  return jnp.cumprod(agrees & moves, axis=1).sum(axis=1).astype(jnp.int32)


def _logits(context: Context, state: State, running):
  """Returns logits `[B, D, L, V]` of the drafts, and counts whole forwards."""
  if state.store is None:
    logits, _ = forward.whole(context, state.drafts)
    return _counted(state, running), logits
  start = places.block_start(context, state.canvas)
  # Rows that are done have no block; they read the last one for nothing.
  start = jnp.minimum(start, state.canvas.shape[1] - context.block)
  causal = context.model.block_causal
  begins = running & ((state.stored == NONE) if causal
                      else start != state.stored)

  def read(store):
    new = (forward.of_prompts(context, state.canvas.shape[1]) if causal
           else forward.whole(context, state.canvas[:, None])[1])
    return cache_lib.where(begins, new, store)

  store = jax.lax.cond(begins.any(), read, lambda store: store, state.store)
  stored = jnp.where(begins, 0 if causal else start, state.stored)
  if causal:
    store, stored = _kept(context, state.canvas, store, stored,
                          jnp.where(running, start, 0))
  logits = forward.of_block(context, state.drafts, store, start)
  state = state.replace(store=store, stored=stored)
  return _counted(state, begins), logits


def _kept(context: Context, canvas, store, stored, start):
  """Returns the store with all blocks before `start [B]`, and where it ends."""
  def read(carry):
    store, stored = carry
    rows = stored < start
    new = forward.with_block(context, canvas, store, jnp.clip(
        stored, 0, canvas.shape[1] - context.block))
    return (cache_lib.where(rows, new, store),
            stored + rows.astype(jnp.int32) * context.block)

  return jax.lax.while_loop(lambda carry: (carry[1] < start).any(), read,
                            (store, stored))


def _counted(state: State, rows) -> State:
  """Counts a whole forward of these rows `[B]`."""
  return state.replace(
      whole_forwards=state.whole_forwards + rows.astype(jnp.int32))
