"""Decodes on two groups of devices: one drafts while the other verifies.

    mesh = jax.make_mesh((2, 4), ("role", "data"))
    roles.generate(key, prompts, lengths, mesh=mesh, method=dj.methods.ssd(4),
                   target=..., ...)                # as dj.generate

The first half of the mesh has the target, the other one the draft model, each
with its own parameters and caches alone. A round is four programs, two of each
group, which the host starts without waiting for any: `jax.device_put` sends
drafts and verdicts over, and what needs nothing of the other group runs at the
same time. One program of all devices could branch by `axis_index("role")`; but
each device would then hold parameters and caches of both models, since in one
program an array has a part of equal size everywhere.
"""

import functools

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

from decoding_jax import loop
from decoding_jax import programs
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.runtime import prefill as prefill_lib
from decoding_jax.speculation import rounds
from decoding_jax.types import Cache, Context, Generation, has_cache

ROLE, DATA = "role", "data"
_ROWS, _SAME = PartitionSpec(DATA), PartitionSpec()


def generate(key, prompts, prompt_lengths, *, mesh: Mesh,
             **arguments) -> Generation:
  """Continues prompts as `dj.generate` does, on two groups of devices.

  The texts equal `dj.generate`'s, up to rounding if layers are split.

  Args:
    key: as in `dj.generate`.
    prompts: `[B, P]`.
    prompt_lengths: `[B]`.
    mesh: has an axis "role" of two; rows are split over an axis "data" of each
      group, and the compiler splits layers over any other.
    **arguments: of `dj.generate`. Parameters that are not yet on devices of
      their group are put on each of these. Rows do not wait in a queue, and
      there is no shared prefix.

  Returns:
    A `Generation`.

  Raises:
    ValueError: as `dj.generate` does; for a method whose step has no parts that
      run at the same time, a mesh without roles, rows that "data" does not
      divide, or arguments that are not possible here.
  """
  request = loop.Request(key, prompts, prompt_lengths, **arguments)
  for name in ("rows", "prefill_chunk", "shared_prefix", "reward"):
    if getattr(request, name) is not None:
      raise ValueError(f"{name}: not possible where drafter and target have "
                       "devices of their own.")
  decoder, context, keys = loop.prepare(request)
  if decoder.rounds is None:
    raise ValueError(f"method {request.method.name} does not draft while it "
                     "verifies: pearl or ssd is needed on a mesh with roles.")
  if not has_cache(request.draft):
    raise ValueError("draft: it reads what the target has cached, and needs "
                     "the same devices: no mesh with roles is possible.")
  groups = split(mesh)
  if len(keys) % groups[0].shape[DATA]:
    raise ValueError(f"mesh: {groups[0].shape[DATA]} devices of data do not "
                     f"divide {len(keys)} rows.")
  slots = loop.full_size(decoder, context, request.max_new_tokens)
  return _run(decoder, request.max_new_tokens, slots, groups, context, keys)


def split(mesh: Mesh) -> tuple[Mesh, Mesh]:
  """Returns the meshes of target and drafter.

  Raises:
    ValueError: unless `mesh` has an axis "role" of two.
  """
  if mesh.shape.get(ROLE) != 2:
    raise ValueError(f"mesh: axes {dict(mesh.shape)}, one of two devices that "
                     f"is called {ROLE!r} is needed.")
  names = tuple(name for name in mesh.axis_names if name != ROLE)
  devices = np.moveaxis(mesh.devices, mesh.axis_names.index(ROLE), 0)
  if DATA not in names:
    names, devices = (DATA, *names), devices[:, None]
  return tuple(Mesh(x, names, axis_types=(AxisType.Auto,) * len(names))
               for x in devices)


def _run(decoder, max_new_tokens, slots, groups, context, keys):
  """Begins, and starts rounds until all rows are done."""
  both = (context.replace(draft_params=None),
          context.replace(target_params=None))
  contexts = [_placed(*x) for x in zip(groups, both)]
  static = decoder, max_new_tokens, slots
  text = _begin(groups[0], *static, True, contexts[0],
                _put(keys, groups[0]))
  drafting = _begin(groups[1], *static, False, contexts[1],
                    _put(keys, groups[1]))
  (on_target, on_drafter), before = zip(groups, contexts), False
  target, drafter = ((mesh, decoder, x) for mesh, x in (on_target, on_drafter))
  while True:
    early, drafting = _propose(*drafter, drafting)
    early = _put(early, groups[0])
    logits, text = _score(*target, text, early)
    late, drafting = _prepare(*drafter, drafting)
    text, news, done = _settle(*target, text, early, _put(late, groups[0]),
                               logits)
    drafting = drafting.replace(news=_put(news, groups[1]))
    # The host is one round ahead, so that no device waits for it.
    if before:
      break  # The round after the last one has changed nothing.
    before = done
  return loop.generation(contexts[0], text, text.stats.target_calls.max())


def _placed(mesh: Mesh, context: Context) -> Context:
  """Puts a context on the devices of a group; parameters that are there stay.
  """
  devices = set(mesh.devices.flat)

  def on_mesh(x):
    there = isinstance(x, jax.Array) and x.sharding.device_set <= devices
    return x if there and len(x.sharding.device_set) == len(
        devices) else jax.device_put(x, NamedSharding(mesh, _SAME))

  specs = _context_specs(context)
  return context.replace(
      target_params=jax.tree.map(on_mesh, context.target_params),
      draft_params=jax.tree.map(on_mesh, context.draft_params),
      **{name: _put(getattr(context, name), mesh, getattr(specs, name))
         for name in ("warper", "draft_warper", "eos_id", "prompts",
                      "prompt_lengths")})


def _put(tree, mesh, spec=_ROWS):
  """Sends arrays to a group; nothing waits until they are there."""
  return jax.device_put(tree, NamedSharding(mesh, spec))


def _context_specs(context: Context) -> Context:
  """Returns how a context is split by rows."""
  return context.replace(
      target_params=_SAME, draft_params=_SAME, eos_id=_SAME, warper=_ROWS,
      draft_warper=_ROWS, prompts=_ROWS, prompt_lengths=_ROWS)


def _specs(tree):
  """Returns how caches, and arrays with rows first, are split by rows."""
  def spec(x):
    if not isinstance(x, Cache):
      return _ROWS
    by_rows = lambda _, row_axis, __: PartitionSpec(*(None,) * row_axis, DATA)
    return cache_lib.with_arrays(
        x, cache_lib.map_arrays(by_rows, x)).replace(
            length=_ROWS, states=x.states and _ROWS)

  return jax.tree.map(spec, tree, is_leaf=cache_lib.is_cache)


def _by_rows(mesh, function, out_specs, context, *trees):
  """Calls a function of a context and of rows, on each part of the rows."""
  # check_vma=False: see `experiments.devices.mesh`.
  return jax.shard_map(
      function, mesh=mesh, out_specs=out_specs, axis_names={DATA},
      in_specs=(_context_specs(context), *map(_specs, trees)),
      check_vma=False)(context, *trees)


@functools.partial(programs.jit, static_argnums=(0, 1, 2, 3, 4))
def _begin(mesh, decoder, max_new_tokens, slots, is_target, context, keys):
  """Prefills the model of a group; its part of the first state."""
  def begin(context, keys):
    model, params = ((context.target, context.target_params) if is_target else
                     (context.draft, context.draft_params))
    cache = prefill_lib.prefill(slots, prefill_lib.CHUNK, model, params,
                                prompts=context.prompts,
                                lengths=context.prompt_lengths)
    caches = (cache, None) if is_target else (None, cache)
    state = loop.first_state(decoder, max_new_tokens, context, caches, keys)
    return (rounds.text if is_target else rounds.drafting)(state)

  return _by_rows(mesh, begin, _specs(jax.eval_shape(begin, context, keys)),
                  context, keys)


@functools.partial(programs.jit, static_argnums=(0, 1), donate_argnums=3)
def _propose(mesh, decoder, context, drafting):
  return _by_rows(mesh, decoder.rounds.propose, (_ROWS, _specs(drafting)),
                  context, drafting)


@functools.partial(programs.jit, static_argnums=(0, 1), donate_argnums=3)
def _score(mesh, decoder, context, text, early):
  def score(context, text, early):
    logits, cache = decoder.rounds.score(context, text, early)
    return logits, text.replace(target_cache=cache)

  return _by_rows(mesh, score, (_ROWS, _specs(text)), context, text, early)


@functools.partial(programs.jit, static_argnums=(0, 1), donate_argnums=3)
def _prepare(mesh, decoder, context, drafting):
  return _by_rows(mesh, decoder.rounds.prepare, (_ROWS, _specs(drafting)),
                  context, drafting)


@functools.partial(programs.jit, static_argnums=(0, 1), donate_argnums=3)
def _settle(mesh, decoder, context, text, early, late, logits):
  def settle(context, *others):
    text = decoder.rounds.settle(context, *others)
    return text, rounds.news(text)

  text, news = _by_rows(mesh, settle, (_specs(text), _ROWS), context, text,
                        early, late, logits)
  return text, news, news.done.all()
