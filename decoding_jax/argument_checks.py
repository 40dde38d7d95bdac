"""Checks of the arguments of `generate`, made before anything is compiled.

Of traced arrays only shapes and types are checked: their values are unknown.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.runtime import cache as cache_lib
from decoding_jax.sampling import Sampling
from decoding_jax.speculation import tree, tree_decoder
from decoding_jax.speculation.drafters import language_model
from decoding_jax.types import (Head, HIDDEN_STATES, LanguageModel, Method,
                                Pair, Reward)
from decoding_jax.validation import memory, params as params_lib
from decoding_jax.validation import protocols, values

_TYPES = {"method": Method, "target": LanguageModel, "draft": LanguageModel,
          "sampling": Sampling, "draft_sampling": Sampling, "reward": Reward}
_OPTIONAL = ("draft", "draft_sampling", "reward")
# Positions are int32, and a cache has room for some more.
_MAX_POSITIONS = 2**30
# Bytes of a token and its log-probability, in the state and in the result.
_TEXT_BYTES = 2 * (4 + 4)


def check_kinds(**arguments):
  """Checks type and fields of arguments for which the library has a type."""
  for name, value in arguments.items():
    needed = Head if isinstance(value, Head) and name == "draft" else (
        _TYPES[name])
    protocols.check(name, needed, value, name in _OPTIONAL)


def check_models(method: Method, target: LanguageModel,
                 draft: LanguageModel | None):
  """Checks that the method and the models fit each other."""
  for program in filter(None, (method.sampled, method.greedy)):
    decoder = tree_decoder.as_decoder(program)
    if decoder.needs_draft and draft is None:
      raise ValueError(f"draft=None: method {method.name} drafts, and needs "
                       "draft and draft_params.")
    if decoder.needs_draft:
      _check_draft(method, program, draft)
    if decoder.max_samples_per_node > target.vocab_size:
      raise ValueError(
          f"method {method.name} drafts {decoder.max_samples_per_node} "
          f"siblings: the vocabulary has {target.vocab_size} tokens.")
    if decoder.needs_features and (
        HIDDEN_STATES not in cache_lib.shapes(target).features):
      raise ValueError(
          f"target keeps no features: method {method.name} reads hidden states,"
          " and needs a target such as transformer.with_features(config, "
          "(config.num_layers,)).")
  if draft is not None and draft.vocab_size != target.vocab_size:
    raise ValueError(
        f"draft.vocab_size={draft.vocab_size} and target.vocab_size="
        f"{target.vocab_size}: the models need the same vocabulary.")


def _check_draft(method, program, draft):
  """Raises a ValueError for a draft by which a method cannot draft."""
  try:
    if isinstance(program, Pair):
      language_model.draft_calls(program.drafter, draft)
    elif not program.takes_head:
      language_model.check_own_cache(draft)
  except ValueError as e:
    raise ValueError(f"method {method.name}: {e}") from None
  if isinstance(draft, Head):
    _check_depth(method, draft)


def _check_depth(method, head):
  """Raises a ValueError for trees that are deeper than a head drafts."""
  depth = max((tree.depth(program.drafter.layout)
               for program in (method.sampled, method.greedy)
               if isinstance(program, Pair)), default=0)
  if head.depth and depth > head.depth:
    raise ValueError(f"method {method.name} drafts {depth} levels: the head "
                     f"drafts at most {head.depth}.")


def check_params(target, target_params, draft, draft_params):
  """Checks that parameters fit their models, by structure and shapes."""
  for name, model, params in (("target", target, target_params),
                              ("draft", draft, draft_params)):
    if model is None:
      continue
    if params is None:
      raise ValueError(f"{name}_params=None: the parameters of the {name} are "
                       "needed; () if it has none.")
    params_lib.check(f"{name}_params", model, params)


def check_memory(program, prompts, max_new_tokens, *, slots, rows, models,
                 num_shared=0):
  """Checks that there is memory for the largest arrays of a call.

  Counted are parameters, texts, caches and the distributions and masks of a
  tree, once each: a call that passes may still need more.

  Args:
    program: the pair or decoder that decodes.
    prompts: `[B, P]`.
    max_new_tokens: the budget.
    slots: S, of the caches to begin with.
    rows: decoded at a time, None for all.
    models: (model, parameters) of the target, and of a drafter that is used.
    num_shared: slots that are kept once for all rows.
  """
  batch, length = prompts.shape
  rows = min(rows or batch, batch)
  # In a queue the results of all rows are kept beside those that run.
  texts = batch + (rows if rows < batch else 0)
  nodes = 1 + (tree.num_nodes(program.drafter.layout)
               if isinstance(program, Pair) else 0)
  memory.check(
      memory.devices_of(prompts, [params for _, params in models]),
      parameters=memory.size(memory.distinct([x for _, x in models])),
      texts=_TEXT_BYTES * texts * (length + max_new_tokens),
      caches=sum(_cache_bytes(model, rows, slots, num_shared)
                 for model, _ in models),
      trees=rows * nodes * (4 * models[0][0].vocab_size + nodes))


@functools.lru_cache(maxsize=256)
def _cache_bytes(model, rows, slots, num_shared):
  """Returns the bytes of a model's cache; 0 if it cannot make one."""
  once = num_shared if model.reads_shared else 0
  try:
    return sum(memory.size(jax.eval_shape(lambda: model.init_cache(*size)))
               for size in ((rows, slots - once), (1, once)))
  except Exception:  # pylint: disable=broad-except
    return 0  # The prefill says what is wrong, of the target first.


def limiting_draft(decoders, draft):
  """Returns a drafter whose context window limits texts, or None. What a pair's
  model drafts never changes the distribution, so that it may draft past its
  window; other decoders use a drafter for more."""
  limits = any(x.needs_draft and (isinstance(draft, Head)
                                  or x.step_with_tree is None)
               for x in decoders)
  return draft if limits else None


def check_budget(prompt_length, max_new_tokens, target: LanguageModel,
                 draft: LanguageModel | None):
  """Checks that prompt and continuation fit into the windows of both models."""
  values.check_positive("max_new_tokens", max_new_tokens)
  positions = prompt_length + max_new_tokens
  needed = (f"a prompt of {prompt_length} tokens and max_new_tokens="
            f"{max_new_tokens} need {positions} positions")
  if positions > _MAX_POSITIONS:
    raise ValueError(f"{needed}: at most {_MAX_POSITIONS} are supported.")
  for name, model in (("target", target), ("draft", draft)):
    if model and model.max_length and positions > model.max_length:
      raise ValueError(
          f"{needed}: the {name} has max_length={model.max_length}.")


def check_eos(eos_id, vocab_size):
  """Checks that each token that ends a text is in the vocabulary."""
  if eos_id is None or isinstance(eos_id, jax.core.Tracer):
    return
  ids = np.asarray(eos_id)
  whole = ids.ndim < 2 and ids.size and np.issubdtype(ids.dtype, np.integer)
  if not whole or not np.all((ids >= 0) & (ids < vocab_size)):
    raise ValueError(f"eos_id={eos_id}: 0 to {vocab_size - 1}, the target's "
                     "vocabulary, several of these, or None is needed.")


def check_temperature(method: Method, greedy, temperature):
  """Checks that the method has a form for the temperature."""
  if (method.greedy if greedy else method.sampled) is None:
    raise ValueError(
        f"sampling.temperature={temperature}: method {method.name} decodes at "
        f"{'temperatures above' if greedy else 'temperature'} 0 only.")


def check_top(count, method: Method, decoder, target: LanguageModel) -> bool:
  """Checks `top_log_probs`; returns whether any are wanted."""
  if not values.is_integer(count) or not 0 <= count <= target.vocab_size:
    raise ValueError(f"top_log_probs={count!r}: an integer from 0 to "
                     f"{target.vocab_size}, the vocabulary, is needed.")
  if count and decoder.step_with_tree is None:
    raise ValueError(f"top_log_probs={count}: method {method.name} drafts no "
                     "tree; autoregressive and methods that do have them.")
  return count > 0


def check_reward(method: Method, batch, reward: Reward | None, reward_params,
                 constraints):
  """Checks that there is a reward if it is needed, and of each row's part."""
  if reward is None:
    if any(decoder.needs_reward for decoder in tree_decoder.decoders(method)):
      raise ValueError(f"reward=None: method {method.name} searches for a "
                       "reward, and needs one.")
    if jax.tree.leaves((reward_params, constraints)):
      raise ValueError("reward=None: without a reward, reward_params and "
                       "constraints must be None.")
  for x in jax.tree.leaves(constraints):
    if jnp.shape(x)[:1] != (batch,):
      raise ValueError(f"constraints holds an array of shape {jnp.shape(x)}: "
                       f"a first axis of {batch} rows is needed.")


def check_rows(rows: int | None, prefill_chunk: int | None = None):
  """Checks how many rows are to be decoded together, and how others join."""
  if rows is not None and (not values.is_integer(rows) or rows < 1):
    raise ValueError(f"rows={rows!r}: a positive integer is needed, or None.")
  if prefill_chunk is not None and (
      not values.is_integer(prefill_chunk) or prefill_chunk < 0):
    raise ValueError(f"prefill_chunk={prefill_chunk!r}: an integer of at least "
                     "0 is needed, or None.")
  if prefill_chunk is not None and rows is None:
    raise ValueError(f"prefill_chunk={prefill_chunk}: it is for prompts that "
                     "wait, and needs rows.")


def check_axes(*arrays):
  """Checks that no array lies on a mesh whose axes are explicit."""
  for x in jax.tree.leaves(arrays):
    mesh = jax.typeof(x).sharding.mesh
    if jax.sharding.AxisType.Explicit in mesh.axis_types:
      raise ValueError(
          f"an array lies on the mesh axes {mesh.axis_names} of type Explicit: "
          "jax.make_mesh(..., axis_types=(jax.sharding.AxisType.Auto,) * "
          f"{len(mesh.axis_names)}) is needed.")
