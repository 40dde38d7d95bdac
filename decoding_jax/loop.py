"""The loop of a generation, for those who run it themselves.

    run = dj.begin(key, prompts, prompt_lengths, method=method, ...)
    while not run.done.all():
      run, info = dj.step(run)         # info.tree, info.verdict, info.tokens
    out = dj.result(run)               # as dj.generate(key, prompts, ...)
    run = dj.extend(run, tokens, lengths)  # a chat's next message; go on

`dj.generate` and `dj.stream` are the same steps in one compiled loop.
"""

import dataclasses
import functools
from typing import Any, Optional, Sequence

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import argument_checks
from decoding_jax import kernels
from decoding_jax import programs
from decoding_jax import sampling as sampling_lib
from decoding_jax.kernels import random
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import cache as cache_lib, continuous_batching
from decoding_jax.runtime import prefill as prefill_lib, token_buffer
from decoding_jax.runtime import top_log_probs as top_lib
from decoding_jax.speculation import tree_decoder
from decoding_jax.types import (Array, Context, DecodeState, Decoder, DraftTree,
                                Generation, Head, LanguageModel, Method, NONE,
                                PAD, Params, Reward, Verdict, has_cache,
                                with_forward)
from decoding_jax.validation import keys as keys_lib
from decoding_jax.validation import prompts as prompts_lib
from decoding_jax.validation import values


@dataclasses.dataclass(frozen=True)
class Request:
  """The arguments of `generate`, unchecked; see its docstring."""
  key: Any
  prompts: Any
  prompt_lengths: Any
  method: Method
  target: LanguageModel
  target_params: Params
  draft: Optional[LanguageModel | Head] = None
  draft_params: Params = None
  max_new_tokens: int = 128
  sampling: sampling_lib.Sampling = sampling_lib.Sampling()
  draft_sampling: Optional[sampling_lib.Sampling] = None
  eos_id: int | Sequence[int] | None = None
  reward: Optional[Reward] = None
  reward_params: Params = None
  constraints: Any = None
  rows: Optional[int] = None
  prefill_chunk: Optional[int] = None
  shared_prefix: Any = None
  top_log_probs: int = 0


@flax.struct.dataclass
class Run:
  """A generation between two steps."""
  # Of the method; static
  decoder: Decoder = flax.struct.field(pytree_node=False)
  context: Context  # Models, parameters and prompts
  state: DecodeState  # Text, caches and counts so far
  steps: Array  # `[]` int32, steps in which some row was not done

  @property
  def tokens(self) -> Array:
    """`[B, P + max_new_tokens]` int32: prompt, what is committed, PAD."""
    return self.state.tokens

  @property
  def lengths(self) -> Array:
    """`[B]` int32, committed tokens, the prompt included."""
    return self.state.length

  @property
  def done(self) -> Array:
    """`[B]` bool, rows to which no step adds anything."""
    return self.state.done


@flax.struct.dataclass
class Info:
  """The result of a step. Of a row that was done, `count` alone has a meaning.

  Attributes:
    tree: what was drafted; None for a method without trees.
    verdict: the accepted path and the token after it; None without a tree. The
      end of the text or of the budget may cut it: see `count`.
    tokens: `[B, T]` int32, what was committed, PAD after it; T is D + 1, or
      without a tree `max_new_tokens`.
    count: `[B]` int32, how many tokens were committed.
    log_probs: `[B, M, V]` float32, the target's distribution after each node
      that is valid, warped as `sampling` says; None if it was not asked for.
  """
  tree: Optional[DraftTree]
  verdict: Optional[Verdict]
  tokens: Array
  count: Array
  log_probs: Optional[Array] = None


def begin(key, prompts, prompt_lengths, *, method: Method,
          target: LanguageModel, target_params: Params,
          draft: Optional[LanguageModel | Head] = None,
          draft_params: Params = None, max_new_tokens: int = 128,
          sampling: sampling_lib.Sampling = sampling_lib.Sampling(),
          draft_sampling: Optional[sampling_lib.Sampling] = None,
          eos_id: int | Sequence[int] | None = None,
          reward: Optional[Reward] = None, reward_params: Params = None,
          constraints=None, shared_prefix=None, top_log_probs: int = 0) -> Run:
  """Checks all arguments and prefills the caches, in their full size.

  Arguments and errors as in `generate`.

  Returns:
    A `Run` before its first step.
  """
  decoder, context, keys = prepare(Request(**locals()))
  slots = full_size(decoder, context, max_new_tokens)
  check_memory(method, decoder, context, max_new_tokens, slots)
  caches = prefill(decoder, slots, prefill_lib.CHUNK, context,
                   share(decoder, prefill_lib.CHUNK, context))
  state = start(decoder, max_new_tokens, context, caches, keys)
  return Run(decoder, context, state, jnp.int32(0))


def step(run: Run, *, log_probs: bool = False) -> tuple[Run, Info]:
  """Decodes one step: every row that is not done gets at least one token.

  It is compiled, once for each decoder and set of shapes, and may be part of a
  function that is compiled, mapped or scanned. Where all rows are done it
  changes no result.

  Args:
    run: of `begin` or of the step before; it is left unchanged.
    log_probs: whether `Info.log_probs` is wanted; static.

  Returns:
    The run after the step, and what the step has done.

  Raises:
    ValueError: for log-probabilities of a method that drafts no tree.
  """
  if log_probs and run.decoder.step_with_tree is None:
    raise ValueError("log_probs=True: the method drafts no tree, and has no "
                     "nodes after which a token could come.")
  state, steps, info = _step(run.decoder, log_probs, run.context, run.state,
                             run.steps)
  return run.replace(state=state, steps=steps), info


@functools.partial(programs.jit, static_argnums=(0, 1))
def _step(decoder: Decoder, log_probs, context: Context, before: DecodeState,
          steps):
  if decoder.step_with_tree is None:
    after, seen = decoder.step(context, before), None
    width = before.tokens.shape[1] - context.prompts.shape[1]
  else:
    after, seen = decoder.step_with_tree(context, before)
    width = seen.tokens.shape[1]
  order, count = jnp.arange(width)[None], after.length - before.length
  columns = jnp.minimum(before.length[:, None] + order,
                        before.tokens.shape[1] - 1)
  tokens = jnp.where(order < count[:, None],
                     kernels.take_along(after.tokens, columns, axis=1), PAD)
  info = Info(seen and seen.tree, seen and seen.verdict, tokens, count)
  if log_probs:
    info = info.replace(log_probs=jax.vmap(sampling_lib.log_probs)(
        context.warper, seen.logits))
  return after, jnp.where(before.done.all(), steps, steps + 1), info


def result(run: Run) -> Generation:
  """Returns what there is so far, in the form of `generate`."""
  return generation(run.context, run.state, run.steps)


def extend(run: Run, tokens, lengths) -> Run:
  """Adds prompt tokens after texts, of which no cached token is read again.

  A row with more tokens begins anew, ended or not: its result is that of
  `begin(run.state.keys, texts, ...)`, of the returned run's keys, where the
  prompt is its text so far and these tokens. So `max_new_tokens` more may
  follow, and statistics and log-probabilities count from there. What a drafter
  gathers of a prompt, such as a table or what a head has read, is made anew.

  Prompts of `begin` are padded to the longest text to come, answers included:
  all later calls are then one program, as far as T is the same.

  Args:
    run: of `begin`, `step` or `extend`; it is left unchanged.
    tokens: `[B, T]` int32, right-padded.
    lengths: `[B]` int32, in 0..T; a row of 0 stays as it is.

  Returns:
    A `Run` before the next step; its `steps` go on.

  Raises:
    ValueError: for arguments that do not fit, for a text and its tokens that
      are longer than the P of `begin` or, with `max_new_tokens`, than a model's
      window; and for models with recurrent layers, if the method is no pair of
      drafter and verifier.
  """
  decoder, context = run.decoder, run.context
  tokens, lengths = (values.array(name, x) for name, x in (
      ("tokens", tokens), ("lengths", lengths)))
  prompts_lib.check(tokens, lengths, context.target.vocab_size,
                    _extra_ids(context.target, context.draft), least=0,
                    names=("tokens", "lengths"))
  room = context.prompts.shape[1]
  longest = prompts_lib.check_room(run.lengths, lengths, room)
  new = run.tokens.shape[1] - room
  argument_checks.check_budget(longest, new, context.target,
                               argument_checks.limiting_draft(
                                   [decoder], context.draft))
  context = context.replace(draft=_within_window(context.draft, longest + new))
  state, prompts, ends = _extend(decoder, context, run.state,
                                 tokens.astype(jnp.int32),
                                 lengths.astype(jnp.int32))
  return run.replace(state=state, context=context.replace(
      prompts=prompts, prompt_lengths=ends))


@functools.partial(programs.jit, static_argnums=(0,))
def _extend(decoder: Decoder, context: Context, state: DecodeState, tokens,
            lengths):
  """Returns the state of longer prompts, these `[B, P]`, and their lengths."""
  (batch, room), more = context.prompts.shape, lengths > 0
  texts = token_buffer.append(state.tokens, state.length, tokens, lengths)
  ends = jnp.where(more, state.length + lengths, context.prompt_lengths)
  longer = context.replace(prompt_lengths=ends, prompts=_without_padding(
      jnp.where(more[:, None], texts[:, :room], context.prompts), ends))
  size = prefill_lib.chunks(tokens.shape[1] + 1, prefill_lib.CHUNK)[1]

  def read(model, params, cache):
    if decoder.step_with_tree is None:  # It may hold drafts that were refused.
      cache = cache_lib.rewind(cache, jnp.minimum(
          cache.length, state.length - 1))
    return prefill_lib.read_rest(size, model, params, cache, longer.prompts,
                                 jnp.where(more, ends, 0))

  caches = [read(*model, cache) for model, cache in zip(
      _models(decoder, context), (state.target_cache, state.draft_cache))]
  # A word of its own, of which no step or position is the number.
  keys = jax.vmap(random.fold_in)(state.keys, jnp.uint32(2**31) + ends.astype(
      jnp.uint32))
  fresh = first_state(decoder, state.tokens.shape[1] - room, longer,
                      (*caches, None)[:2], keys)
  rows = jnp.where(more, jnp.arange(batch), batch)
  return (continuous_batching.put(state, rows, fresh), longer.prompts, ends)


def prepare(request: Request) -> tuple[Decoder, Context, Array]:
  """Checks all arguments; returns the decoder, the context, keys `[B]`."""
  method, target, draft = request.method, request.target, request.draft
  argument_checks.check_kinds(
      method=method, target=target, draft=draft, sampling=request.sampling,
      draft_sampling=request.draft_sampling, reward=request.reward)
  prompts, prompt_lengths, num_shared = _prompts(request)
  argument_checks.check_models(method, target, draft)
  length = prompts_lib.longest(prompts, prompt_lengths)
  _check(request, prompts, length)
  kernels.prepare()  # Before anything is traced that may call them.
  keys = keys_lib.of_rows(request.key, len(prompts))
  prompts, prompt_lengths = (
      x.astype(jnp.int32) for x in (prompts, prompt_lengths))
  warper, draft_warper = _warpers(request, len(prompts))
  context = Context(
      target=target, target_params=request.target_params,
      draft=_within_window(draft, length + request.max_new_tokens),
      draft_params=request.draft_params, warper=warper,
      draft_warper=draft_warper, eos_id=_end_tokens(request.eos_id),
      prompts=_without_padding(prompts, prompt_lengths),
      prompt_lengths=prompt_lengths, reward=request.reward,
      reward_params=request.reward_params,
      constraints=jax.tree.map(jnp.asarray, request.constraints),
      num_shared=num_shared)
  decoder = tree_decoder.decoder_of(method, warper.greedy)
  if argument_checks.check_top(request.top_log_probs, method, decoder, target):
    decoder = top_lib.recorded(decoder, int(request.top_log_probs))
  return decoder, context, keys


def _prompts(request: Request):
  """Returns prompts `[B, P]` with what they share, lengths `[B]`, and L."""
  target, draft = request.target, request.draft
  prompts = values.array("prompts", request.prompts)
  lengths = values.array("prompt_lengths", request.prompt_lengths)
  prompts_lib.check(prompts, lengths, target.vocab_size,
                    _extra_ids(target, draft))
  if request.shared_prefix is None:
    return prompts, lengths, 0
  num_shared = prompts_lib.check_shared(request.shared_prefix, target, draft)
  return *prompts_lib.after(request.shared_prefix, prompts, lengths), num_shared


def _extra_ids(target, draft):
  """Returns how many ids of vectors a prompt may have."""
  return min(getattr(model, "extra_ids", 0) for model in (
      target, draft or target))


def _check(request: Request, prompts, length):
  """Checks what the method needs of the other arguments."""
  method, target, draft = request.method, request.target, request.draft
  argument_checks.check_budget(length, request.max_new_tokens, target,
                               argument_checks.limiting_draft(
                                   tree_decoder.decoders(method), draft))
  argument_checks.check_params(target, request.target_params, draft,
                               request.draft_params)
  argument_checks.check_eos(request.eos_id, target.vocab_size)
  argument_checks.check_reward(method, len(prompts), request.reward,
                               request.reward_params, request.constraints)
  argument_checks.check_axes(prompts, request.target_params,
                             request.draft_params, request.reward_params,
                             request.constraints)


def _warpers(request: Request, batch):
  """Returns the warpers of target and drafter."""
  size = batch, request.target.vocab_size
  warper = sampling_lib.make_warper(request.sampling, *size)
  argument_checks.check_temperature(request.method, warper.greedy,
                                    request.sampling.temperature)
  draft_warper = sampling_lib.make_warper(
      request.draft_sampling or request.sampling, *size, "draft_sampling")
  # At temperature 0 drafts are the most probable tokens of what may occur.
  return warper, sampling_lib.without_temperature(warper) if (
      warper.greedy) else draft_warper


def _within_window(draft, length):
  """Returns a drafter for texts of a length, if need be past its window."""
  if not isinstance(draft, LanguageModel) or not 0 < draft.max_length < length:
    return draft
  return _clamped(draft)


@functools.lru_cache(maxsize=None)
def _clamped(lm):
  """Returns a model that reads all later tokens at its last position. They are
  poor drafts, but cost nothing: shapes are static."""
  def change(forward):
    return lambda params, tokens, positions, *args: forward(
        params, tokens, jnp.minimum(positions, lm.max_length - 1), *args)

  return with_forward(lm, change, max_length=0)


def full_size(decoder: Decoder, context: Context, max_new_tokens: int,
              chunk: int = 0) -> int:
  """Returns the slots of a cache that never has to grow.

  A step also writes `chunk` slots after each text, if that is more than it
  does in any case.
  """
  return prefill_lib.capacity(
      context.prompts.shape[1],
      max_new_tokens + max(decoder.max_slots_ahead, chunk), context.num_shared)


def check_memory(method: Method, decoder: Decoder, context: Context,
                 max_new_tokens: int, slots: int, rows: int | None = None):
  """Does `argument_checks.check_memory` for caches of the needed slots."""
  argument_checks.check_memory(
      method.greedy if context.warper.greedy else method.sampled,
      context.prompts, max_new_tokens, slots=slots, rows=rows,
      num_shared=context.num_shared, models=_models(decoder, context))


def _models(decoder, context: Context):
  """The models that a decoder prefills, each with its parameters."""
  target = context.target, context.target_params
  # Some drafters read what the target has read of the prompts.
  if not decoder.needs_draft or not has_cache(context.draft):
    return [target]
  return [target, (context.draft, context.draft_params)]


def share(decoder: Decoder, chunk: int, context: Context):
  """Returns what target and draft share of all prompts, None if nothing."""
  return tuple(
      prefill_lib.share(context.num_shared, chunk, model, params,
                        prompts=context.prompts)
      if context.num_shared and model.reads_shared else None
      for model, params in _models(decoder, context))


def prefill(decoder: Decoder, slots: int, chunk: int, context: Context, shared):
  """Returns the caches of target and draft; None for a draft not needed.

  Of `slots` each, at most `chunk` tokens of a row at once; `shared` is of
  `share`, of the same rows or of others.
  """
  caches = [prefill_lib.prefill(slots, chunk, *model, prompts=context.prompts,
                                lengths=context.prompt_lengths, shared=once)
            for model, once in zip(_models(decoder, context), shared)]
  return (*caches, None)[:2]


def first_state(decoder: Decoder, max_new_tokens: int, context: Context, caches,
                keys) -> DecodeState:
  """The state in which nothing is generated yet, of prefilled caches."""
  batch, prompt_length = context.prompts.shape
  lengths = context.prompt_lengths
  tokens = jnp.full((batch, prompt_length + max_new_tokens), PAD, jnp.int32)
  tokens = tokens.at[:, :prompt_length].set(
      jnp.where(jnp.arange(prompt_length)[None] < lengths[:, None],
                context.prompts, PAD))
  return decoder.init(context, DecodeState(
      keys=keys, step=jnp.zeros(batch, jnp.int32), tokens=tokens,
      log_probs=jnp.zeros(tokens.shape, jnp.float32), length=lengths,
      limit=lengths + max_new_tokens, done=jnp.zeros(batch, bool),
      target_cache=caches[0], draft_cache=caches[1]))


# The caches are given back, so that the loop writes where they lie.
start = programs.jit(first_state, static_argnums=(0, 1), donate_argnums=3)


def generation(context: Context, state: DecodeState, steps) -> Generation:
  """Returns the `Generation` of a state after some steps."""
  stats = state.stats
  if context.reward is not None:
    value = text_reward.value_of_text(context, state.tokens, state.length)
    stats = stats.replace(extra={**stats.extra, "reward": value})
  return Generation(state.tokens, state.length, state.log_probs, stats, steps,
                    *(state.top or ()))


@jax.jit
def _without_padding(prompts, lengths):
  in_prompt = jnp.arange(prompts.shape[1])[None] < lengths[:, None]
  return jnp.where(in_prompt, prompts, 0)


def _end_tokens(eos_id):
  """`[E]` int32, `[NONE]` for none."""
  ids = values.array("eos_id", NONE if eos_id is None else eos_id)
  return ids.astype(jnp.int32).reshape(-1)
