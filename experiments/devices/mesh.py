"""Decodes on many devices: rows split over "data", heads over "model"."""

import contextlib
import functools
import os
from typing import NamedTuple

from absl import flags
import jax
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from decoding_jax import kernels
from decoding_jax import programs
from decoding_jax import roles
import decoding_jax as dj
from decoding_jax.validation import memory
from experiments.app import launch
from experiments.app import multihost
from experiments.devices import draft_kind
from experiments.devices import memory_estimate
from experiments.devices import mesh_shapes
from experiments.devices import model_pair
from experiments.devices import shared_prefix
from models import checkpoints
from models import transformer
from models.text import vocab_alignment
from models.transformer import quantization
from models.transformer import sharding

_MESH = flags.DEFINE_string(
    "mesh", None, "Devices to split rows (data) and heads (model) over, as in "
    "data:4,model:2; or auto. Default: one device; auto for several processes. "
    "role:2 before them: as many more devices draft while these verify, with "
    "pearl or ssd. Each core of a CPU can be a device.")
DRAFT_MESH = flags.DEFINE_enum(
    "draft_mesh", mesh_shapes.AUTO, [mesh_shapes.AUTO, *mesh_shapes.DRAFTS],
    "Whether layers of a draft model are split over model as well, or are on "
    "all devices (replicated).")
_FORCE = flags.DEFINE_bool(
    "force", False, "Run even if the estimated memory exceeds the device's.")
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "Address and port of the first of several processes, "
    "such as 10.0.0.1:1234. TPU pods, GKE and SLURM need neither this flag nor "
    "--num_processes and --process_id.")
_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "Number of processes; 1 runs one alone.")
_PROCESS_ID = flags.DEFINE_integer("process_id", None,
                                   "Number of this process, from 0.")
flags.adopt_module_key_flags(draft_kind)


class _Run(NamedTuple):
  """Static arguments of a compiled program."""
  mesh: jax.sharding.Mesh
  shared: int
  arguments: tuple  # (name, value) of `dj.generate`


def join(target, batch):
  """Connects to the other processes; call it before JAX is used."""
  # Without others, a CPU gets as many devices as the flags ask for. `batch` is
  # the most rows decoded together.
  connect(lambda: checkpoints.architecture(launch.model_folder(target)), batch)


def connect(architecture, batch):
  """Does what `join` does, for an architecture that `architecture()` reads."""
  with launch.user_errors(RuntimeError, ValueError):
    multihost.join(_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value)
  if _MESH.value is not None and _MESH.value != mesh_shapes.AUTO:
    with launch.user_errors(ValueError):
      mesh_shapes.axes(mesh_shapes.without_roles(_MESH.value)[1])
  if _MESH.value is None or jax.distributed.is_initialized() or (
      jax.config.jax_num_cpu_devices >= 0) or (
          mesh_shapes.DEVICE_COUNT in os.environ.get("XLA_FLAGS", "")):
    return
  with launch.user_errors(OSError, ValueError):
    config = architecture()
  count = mesh_shapes.host_devices(_MESH.value, config, batch, kernels.cores())
  with contextlib.suppress(RuntimeError):  # A process that has used JAX.
    jax.config.update("jax_num_cpu_devices", count)


def value():
  """Returns the flag `--mesh`; without it "auto" for several processes."""
  if _MESH.value is None and jax.process_count() > 1:
    return mesh_shapes.AUTO
  return _MESH.value


def load(pair, kinds, batch, most, width, max_new_tokens, decoded=None):
  """Reads the parameters of a pair onto the devices of the flags."""
  # `kinds` are pairs or decoders that will decode, `batch` the rows decoded
  # together, `most` those that have a cache at a time, `width` the P tokens of
  # the longest prompt; `decoded` has the logits processors, whose states need
  # memory.
  sizes_, decoded = (kinds, most, width, max_new_tokens), decoded or pair
  if value() is None:
    memory_estimate.check(decoded, *sizes_, _FORCE.value)
    return model_pair.with_params(pair)
  pair, decoded = map(_without_groups, (pair, decoded))
  config = checkpoints.architecture(launch.model_folder(pair.source.target))
  with launch.user_errors(ValueError):
    apart, each = mesh_shapes.without_roles(value())
    if apart:
      _check_roles(pair, kinds)
    shapes = mesh_shapes.sizes(each, config, batch, jax.device_count(),
                               1 + apart)
    ways = [partition(pair, shape, DRAFT_MESH.value) for shape in shapes]
  # All processes choose the same, be their machines equal or not.
  number = multihost.from_first(lambda: choose(decoded, ways, *sizes_))
  shape = shapes[number]
  memory_estimate.check(decoded, *sizes_, _FORCE.value, ways[number])
  make = mesh_shapes.make_roles if apart else mesh_shapes.make
  return with_params(pair, make(shape), drafts=DRAFT_MESH.value)


def _without_groups(pair):
  """Returns a pair of shapes with matrices in the models' types for stored."""
  # Groups of weights are not split: the same numbers are, in the model's type.
  weights, made = pair.source.weights, {}  # What models share is made once.

  def dense(params, weights, dtype):
    return params if weights != quantization.STORED else jax.tree.map(
        lambda x: made.setdefault(id(x), jax.ShapeDtypeStruct(
            quantization.shape(x), dtype)) if quantization.is_matrix(x) else x,
        params, is_leaf=quantization.is_matrix)

  target, draft = map(dense, (pair.target_params, pair.draft_params), weights,
                      (model_pair.types(pair) * 2)[:2])
  return pair._replace(
      target_params=target, draft_params=draft,
      source=pair.source._replace(weights=tuple(
          quantization.DTYPE if x == quantization.STORED else x
          for x in weights)))


def _check_roles(pair, kinds):
  """Raises ValueError unless drafter and target can work at the same time."""
  if jax.process_count() > 1:
    raise ValueError(f"--mesh={value()}: one process is needed, there are "
                     f"{jax.process_count()}.")
  if not all(getattr(program, "rounds", None) for program in kinds):
    raise ValueError(f"--mesh={value()}: --method=pearl or ssd is needed, "
                     "which draft while the target verifies.")
  if pair.drafts.of_target or pair.drafts.is_head or (
      pair.drafts.architecture(pair.source) is None):
    raise ValueError(f"--mesh={value()}: --draft={pair.drafts} has no devices "
                     "of its own; a draft model is needed.")


def choose(pair, ways, kinds, most, width, max_new_tokens) -> int:
  """Returns the number of the first of `ways` that fits, else of the last."""
  there = memory_estimate.device_memory(jax.local_devices()[0])
  return next((i for i, x in enumerate(ways) if there is None or there >= sum(
      memory_estimate.estimate(pair, kinds, most, width, max_new_tokens, x))),
              len(ways) - 1)


def partition(pair, shape, drafts=mesh_shapes.AUTO):
  """Returns how a mesh of (data, model) devices divides arrays, as `Ways`."""
  data, model = shape
  draft = None if pair.drafts.of_target else (
      pair.drafts.architecture(pair.source))
  own = 1 if pair.drafts.is_head else model
  if draft is not None:
    own = mesh_shapes.draft_size(drafts, draft, model)
  return memory_estimate.Ways(model, data, own)


def from_flags(config, batch, count):
  """Returns the "data" and "model" sizes of `--mesh`, or (1, 1)."""
  # No device is used: `count` says how many there are.
  with launch.user_errors(ValueError):
    asked = "data:1" if _MESH.value is None else _MESH.value
    return mesh_shapes.sizes(asked, config, batch, count)[0]


def stand_ins(folder, config, shardings):
  """Returns shapes and shardings instead of the parameters of a model."""
  params = transformer.abstract_params(config)
  return jax.tree.map(
      lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
      params, shardings(params))


def with_params(pair, mesh, read=draft_kind.params, drafts=mesh_shapes.AUTO):
  """Reads the parameters of a pair onto a mesh; `drafts`: `--draft_mesh`."""
  # A head on the target's features is replicated, with what it keeps. `read` is
  # `(folder, config, shardings) -> parameters`; `stand_ins` reads none.
  groups = roles.split(mesh) if mesh_shapes.has_roles(mesh) else (mesh, mesh)
  pair, placing = _without_groups(pair), _place_of(groups[0], read)
  source = pair.source
  own = source.target, source.dtypes[0], source.weights[0]
  config = source.architecture()
  lm = placing.model(transformer.with_features(config, pair.kept) if pair.kept
                     else transformer.language_model(config), config)
  drafting = placing if pair.drafts.of_target else _place_of(
      groups[1], read, functools.partial(mesh_shapes.draft_size, drafts))
  with launch.user_errors(OSError, ValueError):
    # Gather logits before cutting padding off: it may end on any device.
    pair = pair.drafts.on_mesh(pair._replace(target=vocab_alignment.cut(
        lm, pair.target.vocab_size), mesh=mesh), drafting)
    return pair.drafts.load(pair._replace(target_params=placing.read(*own)),
                            drafting)


def _place_of(mesh, read, size_of=mesh_shapes.split_size):
  """Returns a mesh as a `draft_kind.Placing`."""
  # `size_of` is `(config, size of "model") -> devices that split layers`.
  def size(config):
    return size_of(config, mesh.shape[sharding.MODEL])

  def read_split(name, dtype, weights):
    config = draft_kind.architecture(name, dtype, weights)
    return read(launch.model_folder(name), config,
                sharding.shardings(config, mesh, size(config)))

  def replicate(load_, shapes):
    if read is not stand_ins:
      return on_all(mesh, load_())
    where = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=where), shapes)

  def model(lm, config):
    # What rows share is not split by slots.
    return sharding.language_model(
        lm, whole=size(config) < mesh.shape[sharding.MODEL])._replace(
            reads_shared=not config.num_kv_heads % size(config))

  return draft_kind.Placing(read_split, replicate, model)


def on_all(mesh, tree):
  """Replicates arrays, such as the parameters of a reward, on a mesh."""
  return tree if mesh is None else put(mesh, PartitionSpec(), tree)


def with_processors(pair, processors):
  """Applies (processor, parameters) pairs to target and draft."""
  # A head has no state of its tokens: what it drafts may be refused.
  for processor, params in processors:
    params = on_all(pair.mesh, params)
    target, target_params = dj.processors.apply(
        processor, params, pair.target, pair.target_params)
    pair = pair._replace(target=target, target_params=target_params)
    if isinstance(pair.draft, dj.LanguageModel):
      draft, draft_params = dj.processors.apply(
          processor, params, pair.draft, pair.draft_params)
      pair = pair._replace(draft=draft, draft_params=draft_params)
  return pair


def generate(pair, keys, prompts, lengths, *, reward_params=None,
             constraints=None, rows=None, **settings):
  """Calls `dj.generate` with a `ModelPair`, on one device or a mesh."""
  # On a mesh it is one program, in which each index of "data" has its own loop,
  # which ends with its own rows; `steps` count the longest's. Every
  # process gets the whole result, on the host. What prompts `[B, P]` begin with
  # in common is kept once, as far as `pair.share` allows; on a mesh by each
  # index of "data".
  model_pair.check_prompts(pair, prompts, lengths)
  pair = model_pair.for_method(pair, settings["method"])
  sampling = settings["sampling"]
  run = _run(pair, shared_prefix.of_batch(pair, prompts, lengths, rows),
             rows=rows, **settings)
  params = pair.target_params, pair.draft_params, reward_params
  if pair.mesh is None:
    return _decode(run, sampling, (keys, prompts, lengths, constraints), params)
  if mesh_shapes.has_roles(pair.mesh):
    with launch.user_errors(ValueError):
      return jax.tree.map(np.asarray, roles.generate(
          keys, prompts, lengths, mesh=pair.mesh, target=pair.target,
          target_params=pair.target_params, draft=pair.draft,
          draft_params=pair.draft_params,
          rows=rows if (rows or 0) < len(prompts) else None, **settings))
  batch = put(pair.mesh, PartitionSpec(sharding.DATA),
              (jax.random.key_data(keys), prompts, lengths, constraints))
  # Before decoding: the results of earlier batches have been written by now.
  multihost.stop_together()
  return jax.tree.map(np.asarray, _generate(
      run, batch, np.float32(sampling.temperature), params))


def _decode(run, sampling, batch, params):
  keys, prompts, lengths, constraints = batch
  target_params, draft_params, reward_params = params
  return dj.generate(
      keys, prompts[:, run.shared:], lengths - run.shared,
      target_params=target_params, draft_params=draft_params,
      reward_params=reward_params, constraints=constraints,
      shared_prefix=prompts[0, :run.shared] if run.shared else None,
      **{**dict(run.arguments), "sampling": sampling})


def trace(pair, batch, width, *, device_bytes=None, **settings):
  """Traces the program of `generate` for devices that may be absent."""
  # The parameters of `pair` are `stand_ins`. `device_bytes` is the memory of
  # each device, None if unknown; this machine's does not matter.
  pair = model_pair.for_method(pair, settings["method"])

  def shape(spec, axes, dtype):
    return jax.ShapeDtypeStruct(axes, dtype,
                                sharding=NamedSharding(pair.mesh, spec))

  rows = functools.partial(shape, PartitionSpec(sharding.DATA))
  key = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
  # The program is one of a part of the rows, which these devices share.
  there = device_bytes and device_bytes * pair.mesh.shape[sharding.MODEL]
  with launch.user_errors(memory.TooLittle), memory.of_absent(there):
    return _generate.trace(
        _run(pair, 0, **settings),
        (rows((batch, *key.shape), key.dtype), rows((batch, width), np.int32),
         rows((batch,), np.int32), None),
        shape(PartitionSpec(), (), np.float32),
        (pair.target_params, pair.draft_params, None))


def _run(pair, shared, *, sampling, rows=None, **settings):
  # All temperatures but 0 are one program.
  fixed = sampling.replace(temperature=float(sampling.temperature > 0))
  settings.update(target=pair.target, draft=pair.draft, sampling=fixed,
                  rows=rows and rows // mesh_shapes.multiple(pair.mesh))
  return _Run(pair.mesh, shared, tuple(sorted(settings.items())))


@functools.partial(programs.jit, static_argnums=(0,))
def _generate(run: _Run, batch, temperature, params):
  def of_rows(batch, temperature, params):
    sampling = dict(run.arguments)["sampling"]
    if sampling.temperature:
      sampling = sampling.replace(temperature=temperature)
    out = _decode(run, sampling, batch, params)
    return out.replace(steps=out.steps[None])

  by_rows, same = PartitionSpec(sharding.DATA), PartitionSpec()
  # check_vma=False: loop carries start replicated and become device-varying
  # after the first step, which the check rejects.
  out = jax.shard_map(
      of_rows, mesh=run.mesh, in_specs=(by_rows, same, same), out_specs=by_rows,
      axis_names={sharding.DATA}, check_vma=False)(batch, temperature, params)
  out = out.replace(steps=out.steps.max())
  # So that every process can read it.
  return jax.lax.with_sharding_constraint(out, NamedSharding(run.mesh, same))


def put(mesh, spec, tree):
  """Puts arrays of the host on a mesh; each process provides its part."""
  def put_array(x):
    x = np.asarray(x)
    return jax.make_array_from_callback(
        x.shape, NamedSharding(mesh, spec), lambda at: x[at])

  return jax.tree.map(put_array, tree)
