"""Estimates the memory of a run before any parameter is loaded.

Weights, caches and ancestor masks are counted exactly, from shapes.
Temporaries are estimated by the largest array that a forward computes: three
times its size in a prefill, where that array holds attention scores; five
times with native CPU kernels, which keep no scores; twice in a step, beside its
logits. XLA's CPU programs of tree methods needed 0.7 to 1.0 times the estimate,
those for TPUs 0.4 to 2.6 times. `experiments.estimate` compiles instead. Keys
and values of beams, and of samples of whole texts, are not counted.
"""

import sys
from typing import NamedTuple

import jax
from jax.extend import core
import jax.numpy as jnp

import decoding_jax as dj
from decoding_jax import kernels
from decoding_jax import types
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import prefill
from decoding_jax.speculation import tree
from decoding_jax.speculation import tree_decoder
from decoding_jax.validation import memory
from experiments.app import launch
from experiments.app import multihost
from experiments.devices import draft_levels

_GIB = 2**30
# Times the largest array in a step.
_OF_STEP = 2


class Ways(NamedTuple):
  """Number of parts that a mesh divides arrays into."""
  layers: int = 1  # of parameters, keys and values, scores and vocabularies
  rows: int = 1  # of arrays with an axis of rows, in addition to layers
  # Of what the draft has alone, keys and values too; 0: as `layers`.
  drafts: int = 0


class Need(NamedTuple):
  """Bytes on each device."""
  weights: int  # of both models
  # Of both models, of logits processors beside them, and what a drafter
  # carries.
  caches: int
  # Of the target at the nodes of a tree, and distributions of the drafter.
  logits: int
  # Ancestor masks of a tree, when drafted and when scored.
  masks: int
  temporaries: int  # of the largest forward


def check(pair, kinds, batch, width, max_new_tokens, force=False, ways=Ways()):
  """Raises `UserError` unless a run, as in `estimate`, fits on a device.

  Prints on stderr what it needs, and what there is.
  """
  there = device_memory(jax.local_devices()[0])
  need = estimate(pair, kinds, batch, width, max_new_tokens, ways)
  line = (f"a device needs {text(need)} at batch={batch}, prompts of {width} "
          f"and max_new_tokens={max_new_tokens}, and has "
          f"{f'{there / _GIB:.2f} GiB' if there else 'an unknown memory'}")
  if there and sum(need) > there and not force:
    raise launch.UserError(
        f"{line}: make them smaller, or try it with --force.")
  if multihost.first():
    print(line, file=sys.stderr)


def text(need) -> str:
  """Returns the sum of a `Need` in GiB, or MiB, and its parts."""
  name, unit = ("GiB", _GIB) if sum(need) >= _GIB else ("MiB", _GIB >> 10)
  parts = ", ".join(f"{part} {size / unit:.2f}"
                    for part, size in need._asdict().items())
  return f"{sum(need) / unit:.2f} {name} ({parts})"


def estimate(pair, kinds, batch, width, max_new_tokens, ways=Ways()) -> Need:
  """Estimates the bytes that a run needs on each device."""
  # The parameters of the pair may be shapes. `kinds` are pairs or decoders, one
  # after the other; `width` is the P tokens of the longest prompt.
  decoders = [tree_decoder.as_decoder(program) for program in kinds]
  slots = most_slots(kinds, width, max_new_tokens)
  models = [(pair.target, pair.target_params)]
  drafts = any(decoder.needs_draft for decoder in decoders)
  # What a head keeps is counted as what its drafter carries; the slots that a
  # draft model reads of the target's cache are copied.
  is_head = isinstance(pair.draft, dj.Head)
  if drafts and not is_head:
    models.append((pair.draft, pair.draft_params))
  scored, drafted = (max(sizes) for sizes in zip(*map(nodes, kinds)))
  chunk = max(min(width - 1, prefill.CHUNK), 1)
  of_prefill = 5 if kernels.available() else 3
  temporaries = max(
      *(_largest(lm, params, batch, chunk, slots, logits=False,
                 times=of_prefill) for lm, params in models),
      _largest(*models[0], batch, scored, slots, logits=True, times=_OF_STEP))
  parts, own = ways.rows * ways.layers, ways.drafts or ways.layers
  all_weights = memory.size(memory.distinct([x for _, x in models] + [
      pair.draft_params] * (drafts and is_head)))
  of_target = memory.size(memory.distinct([pair.target_params]))
  caches = sum(
      memory.size((x.keys, x.values, x.length)) // (ways.rows * n) +
      memory.size((x.features, x.states, _updates(x, scored))) // ways.rows
      for (lm, _), n in zip(models, (ways.layers, own))
      for x in [_cache(lm, batch, slots)])
  return Need(
      of_target // ways.layers + (all_weights - of_target) // own,
      caches + max(memory.size(carry(
          program, batch, width, slots, pair.target, pair.target_params,
          *((pair.draft, pair.draft_params) if decoder.needs_draft else ())))
                   for program, decoder in zip(kinds, decoders)) // ways.rows,
      4 * batch * pair.target.vocab_size * (scored + drafted) // parts,
      2 * batch * scored**2 // ways.rows,
      temporaries // parts)


def most_slots(kinds, width, max_new_tokens) -> int:
  """Returns the most slots of a cache in a run; arguments as in `estimate`."""
  return max(prefill.capacity(
      width, max_new_tokens + tree_decoder.as_decoder(program).max_slots_ahead)
             for program in kinds)


def device_memory(device) -> int | None:
  """Returns the bytes that a device has for arrays; None if unknown."""
  limit = (device.memory_stats() or {}).get("bytes_limit")
  if limit is None and device.platform == "cpu":
    # Devices that are simulated share the machine.
    return memory.host_memory() // jax.local_device_count()
  return limit


def nodes(program):
  """Returns the most nodes that a call scores, and a model drafts from."""
  if isinstance(program, dj.Pair):
    return (1 + tree.num_nodes(program.drafter.layout),
            draft_levels.num_distributions(program.drafter))
  # Searches score a token of each beam, and write no slots ahead.
  return max(program.max_slots_ahead,
             1) * program.max_samples_per_node, program.max_slots_ahead


def _cache(lm, batch, slots):
  view = lm.target_view or (lambda cache: cache)
  return jax.eval_shape(lambda: view(lm.init_cache(batch, slots)))


def _updates(cache, nodes):
  """Returns what nodes of a tree keep beside keys and values; as shapes."""
  return jax.eval_shape(lambda x: cache_lib.init_block(x, nodes), cache
                        ).features.get(types.UPDATES) if cache.states else None


def carry(program, batch, width, slots, target, target_params=None, draft=None,
          draft_params=None):
  """Returns the shapes of what a drafter carries; None for nothing."""
  if not isinstance(program, dj.Pair):
    return None
  shape = jax.ShapeDtypeStruct
  count, text = shape((batch,), jnp.int32), (batch, slots)
  context = dj.Context(
      target=target, target_params=target_params, draft=draft,
      draft_params=draft_params, warper=None, draft_warper=None,
      eos_id=shape((1,), jnp.int32),
      prompts=shape((batch, width), jnp.int32), prompt_lengths=count,
      reward=None, reward_params=None, constraints=None)
  state = dj.DecodeState(
      keys=jax.eval_shape(lambda: jax.random.split(jax.random.key(0), batch)),
      step=count, tokens=shape(text, jnp.int32),
      log_probs=shape(text, jnp.float32), length=count, limit=count,
      done=shape((batch,), bool),
      target_cache=_cache(target, batch, slots),
      draft_cache=(_cache(draft, batch, slots) if draft is not None and
                   types.has_cache(draft) else None))
  return jax.eval_shape(program.drafter.init, context, state).carry


def _largest(lm, params, batch, tokens, slots, *, logits, times):
  """Returns `times` the bytes of the largest array of a forward."""
  # Without `logits` only the block is asked for.
  def forward(params, fresh, cache, block, mask):
    result = lm.forward(params, fresh, fresh, cache, block, 0, mask)
    return result if logits else result[1]

  shape = jax.ShapeDtypeStruct
  cache = _cache(lm, batch, slots)
  jaxpr = jax.make_jaxpr(forward)(
      params, shape((batch, tokens), jnp.int32), cache,
      jax.eval_shape(lambda x: cache_lib.init_block(x, tokens), cache),
      shape((batch, tokens, tokens), bool)).jaxpr
  # A barrier has its arguments for results, and computes nothing.
  return max((times * memory.size([v.aval for v in equation.outvars])
              for equation in _used(jaxpr)
              if equation.primitive.name != "optimization_barrier"), default=0)


def _used(jaxpr):
  """Yields equations that results depend on, also in inner programs."""
  needed = set(map(id, jaxpr.outvars))
  for equation in reversed(jaxpr.eqns):
    if not needed.isdisjoint(map(id, equation.outvars)):
      needed.update(map(id, equation.invars))
      yield equation
      for inner in _inner(equation):
        yield from _used(inner)


def _inner(equation):
  """Returns the inner programs of an equation, for this platform only."""
  platforms = equation.params.get("branches_platforms")
  if not platforms:
    return core.jaxprs_in_params(equation.params)
  own = next(i for i, names in enumerate(platforms)
             if names is None or jax.default_backend() in names)
  return [equation.params["branches"][own].jaxpr]
