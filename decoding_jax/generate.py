"""Generation: prefill, then the steps of a decoder in one loop."""

import functools
from typing import Iterator, Optional, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import argument_checks
from decoding_jax import loop
from decoding_jax import programs
from decoding_jax import sampling as sampling_lib
from decoding_jax.runtime import cache as cache_lib, cache_growth
from decoding_jax.runtime import continuous_batching, prefill as prefill_lib
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import (Context, DecodeState, Decoder, Generation, Head,
                                LanguageModel, Method, Pair, Params, Reward)
from decoding_jax.validation import values

# More steps than any generation takes: do not pause.
_ALL = np.iinfo(np.int32).max


def generate(key, prompts, prompt_lengths, *, method: Method,
             target: LanguageModel, target_params: Params,
             draft: Optional[LanguageModel | Head] = None,
             draft_params: Params = None, max_new_tokens: int = 128,
             sampling: sampling_lib.Sampling = sampling_lib.Sampling(),
             draft_sampling: Optional[sampling_lib.Sampling] = None,
             eos_id: int | Sequence[int] | None = None,
             reward: Optional[Reward] = None, reward_params: Params = None,
             constraints=None, rows: Optional[int] = None,
             prefill_chunk: Optional[int] = None,
             shared_prefix=None, top_log_probs: int = 0) -> Generation:
  """Continues prompts; by most methods with the distribution of the target.

  Two compiled programs. The prefill serves all methods; the other, a single
  loop, any call with the same method, models, reward, `max_new_tokens`, top-k
  and shapes. Where the budget is large, caches begin small and double when they
  are full, with one more program each time. To be called outside of `jit`, or
  inside as part of one program. With `rows` there is one program, which has the
  prefill inside. In both cases caches are of their full size from the start.

  Args:
    key: a random key; row i uses `fold_in(key, i)`. Or `[B]` keys, one a row:
      a row's tokens depend on its own key and prompt alone. Keys of another
      generator than Threefry, such as "rbg", count as their first two words.
    prompts: `[B, P]` int32, right-padded.
    prompt_lengths: `[B]` int32, in 1..P.
    method: from `decoding_jax.methods`, or one's own.
    target: the model whose distribution is kept.
    target_params: its parameters.
    draft: the model that drafts, or a head on the target's features; None if
      the method needs none.
    draft_params: its parameters.
    max_new_tokens: most tokens after each prompt.
    sampling: defines the distribution that is kept. At temperature 0 the output
      is the target's greedy output.
    draft_sampling: the same for the drafter; None for the same warp. Not used
      at temperature 0, where drafts are the most probable tokens.
    eos_id: a row ends after its first such token, or the first of several
      such tokens; None if no token ends it.
    reward: what a text is worth. A method that does not search for it leaves
      it alone; `stats.extra["reward"]` is each text's reward in any case.
    reward_params: its parameters.
    constraints: tree of `[B, ...]`, what the reward asks of each row; None if
      it asks the same of all.
    rows: how many are decoded together, where the B prompts are more; a row
      that has finished makes room for the next. The texts are the same. None
      for all.
    prefill_chunk: with `rows`, prompt tokens that a row which joins reads in a
      step of the others; as many as the step scores nodes of a row, if these
      are more. They cost the others no more than that. None for just as many as
      it scores, if they are five or more. 0, and None otherwise, prefills a
      quarter of the rows at a time while the others wait. So does in any case a
      method without draft trees.
    shared_prefix: `[L]` int32, tokens that come before all prompts; None for
      none. The result is as for prompts which begin with them; but their keys
      and values are kept once for all rows, and read once a forward
      (arXiv 2402.05099). A draft model that cannot share, and a head, keep them
      in each row.
    top_log_probs: K, the most probable tokens wanted at each position, see
      `Generation`; of methods that draft trees or chains, and autoregressive.

  Returns:
    A `Generation`.

  Raises:
    ValueError: for arguments that do not fit, before anything is compiled.
  """
  *_, out = _outputs(None, loop.Request(**locals()))
  return out


def stream(key, prompts, prompt_lengths, *, every: int = 1, method: Method,
           target: LanguageModel, target_params: Params,
           draft: Optional[LanguageModel | Head] = None,
           draft_params: Params = None, max_new_tokens: int = 128,
           sampling: sampling_lib.Sampling = sampling_lib.Sampling(),
           draft_sampling: Optional[sampling_lib.Sampling] = None,
           eos_id: int | Sequence[int] | None = None,
           reward: Optional[Reward] = None, reward_params: Params = None,
           constraints=None, rows: Optional[int] = None,
           prefill_chunk: Optional[int] = None,
           shared_prefix=None, top_log_probs: int = 0) -> Iterator[Generation]:
  """Continues prompts, and tells after a few steps what there is so far.

  Texts and the other arguments as in `generate`; no argument may be traced.
  With `rows` there is one result. Between two results the loop comes back to
  the host, which waits for it.

  Args:
    every: steps between two results; a step adds at least one token to each row
      that has not ended.

  Yields:
    A `Generation` of arrays of the host; the last one equals `generate`'s.

  Raises:
    ValueError: as `generate` does, when the first result is asked for.
  """
  arguments = dict(locals())
  values.check_positive("every", arguments.pop("every"))
  for out in _outputs(every, loop.Request(**arguments)):
    # The next program writes where arrays of this one lie.
    yield jax.tree.map(np.array, out)


def _outputs(every, request: loop.Request):
  """Yields partial results: every `every` steps, and when caches grow."""
  method, rows = request.method, request.rows
  max_new_tokens = request.max_new_tokens
  argument_checks.check_rows(rows, request.prefill_chunk)
  decoder, context, keys = loop.prepare(request)
  (batch, length), shared = context.prompts.shape, context.num_shared
  queued, traced = rows is not None and rows < batch, programs.is_traced(
      (context, keys))
  # Chunks are read of the same tokens by target and draft.
  together = not shared or all(
      x is None or getattr(x, "reads_shared", True)
      for x in (context.target, context.draft))
  width = queued and together and _chunk_width(
      method.greedy if context.warper.greedy else method.sampled,
      request.prefill_chunk)
  slots = loop.full_size(decoder, context, max_new_tokens, width)
  # Under an outer jit the host cannot see that a cache is full, so that it has
  # its full size from the start.
  now = slots if queued or traced else cache_growth.initial_slots(
      prefill_lib.capacity(length, decoder.max_slots_ahead, shared), slots,
      shared)
  loop.check_memory(method, decoder, context, max_new_tokens, now, rows)
  if queued:
    yield _generate_queued(decoder, max_new_tokens, rows, slots,
                           prefill_lib.CHUNK, width, context, keys)
    return
  if every and traced:
    raise ValueError("stream comes back to the host, so that its arguments "
                     "cannot be traced: generate can be inside of jit.")
  caches = loop.prefill(decoder, now, prefill_lib.CHUNK, context,
                        loop.share(decoder, prefill_lib.CHUNK, context))
  if every:
    # All steps of a stream are one program: the next result needs no other.
    state = loop.start(decoder, max_new_tokens, context, caches, keys)
    steps = 0
  else:
    out, state = _generate(decoder, max_new_tokens, context, caches, keys)
    steps = out.steps
    yield out
  while (every or now < slots) and not state.done.all():
    if state.length.max() + decoder.max_slots_ahead > now:
      now = cache_growth.next_slots(now, slots, shared)
      state = cache_growth.grow(state, now)
    # Of the host: an array that a program has returned is bound to a device,
    # and one that is not would need a program of its own.
    out, state = _resume(decoder, context, state, np.int32(steps),
                         np.int32(every or _ALL))
    steps = out.steps
    yield out


def _chunk_width(program: Pair | Decoder, size) -> int:
  """Returns the prompt tokens a joining row reads in a step; 0 if it waits."""
  if not isinstance(program, Pair) or size == 0:
    return 0
  nodes = 1 + tree_lib.num_nodes(program.drafter.layout)
  if size is None:
    return nodes if nodes >= continuous_batching.LEAST_CHUNK else 0
  return max(size, nodes)


# The caches are given back, so that the loop writes where they lie.
@functools.partial(programs.jit, static_argnums=(0, 1), donate_argnums=3)
def _generate(decoder, max_new_tokens, context: Context, caches, keys):
  """Begins, and runs the loop."""
  state = loop.first_state(decoder, max_new_tokens, context, caches, keys)
  return _run(decoder, context, state, jnp.int32(0), _ALL)


@functools.partial(programs.jit, static_argnums=(0,), donate_argnums=2)
def _resume(decoder, context: Context, state, steps, every):
  """Goes on with what `start` or a loop has left, perhaps in larger caches."""
  return _run(decoder, context, state, steps, every)


def _run(decoder, context: Context, state: DecodeState, before, every):
  """Steps until all rows are done, or a cache may not have room for one more.

  After `every` more steps than `before` it ends as well.

  Returns:
    A `Generation`, as far as it has come, and the state.
  """
  slots = cache_lib.capacity(state.target_cache)

  def goes_on(carry):
    state, steps = carry
    # Some row still runs.
    runs = ~state.done.all()
    # The next step's slots fit into every row's cache; else the caller grows
    # them. A model that keeps nothing has no such limit.
    fits = True if slots is None else (
        state.length.max() + decoder.max_slots_ahead <= slots)
    # A stream has not yet asked for the next result.
    return runs & fits & (steps - before < every)

  state, steps = jax.lax.while_loop(
      goes_on, lambda carry: (decoder.step(context, carry[0]), carry[1] + 1),
      (state, before))
  return loop.generation(context, state, steps), state


@functools.partial(programs.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def _generate_queued(decoder, max_new_tokens, rows, slots, chunk, width,
                     context: Context, keys):
  """Generates all prompts, `rows` of them at a time."""
  start = functools.partial(loop.first_state, decoder, max_new_tokens)
  shared = loop.share(decoder, chunk, context)

  def begin(context, keys):
    caches = loop.prefill(decoder, slots, chunk, context, shared)
    return start(context, caches, keys)

  queue = decoder, context, keys, rows
  return loop.generation(context, *(
      continuous_batching.run_chunked(*queue, width, begin, start) if width
      else continuous_batching.run(*queue, begin)))
