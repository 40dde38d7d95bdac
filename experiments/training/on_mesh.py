"""Training on a mesh of devices: rows over "data", layers over "model".

Models compute as they decode, inside of a `jax.shard_map` over "data" whose
"model" is left to the compiler (`models.transformer.sharding`). Losses are
means over all rows, in the program around it: what they and the gradients of
parameters need of other devices is summed by the compiler. So the numbers
equal one device's but for the order of sums. A mesh of None is one device.
"""

import itertools
import math

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np

from decoding_jax.kernels import vocabulary
from experiments.app import launch
from experiments.app import multihost
from experiments.devices import memory_estimate
from experiments.devices import mesh as mesh_lib
from experiments.devices import mesh_shapes
from experiments.devices import model_pair
from experiments.training import own_texts
from models import checkpoints
from models import transformer
from models.transformer import sharding

# Numbers of four bytes a parameter that learns: itself, its gradient, and two
# moments of the optimizer. Logits: two models', and their gradients.
_LEARNING, _LOGITS = 4, 4


def of_flags(config, learner: transformer.Config):
  """Returns the mesh that the flags ask for; None for one device."""
  # `learner` is the architecture of what is trained, or of the target of a
  # head.
  value = mesh_lib.value()
  if value is None:
    return None
  with launch.user_errors(OSError, ValueError):
    if value != mesh_shapes.AUTO:
      check_rows(config, value, mesh_shapes.axes(value)[0])
    split = split_architecture(config, learner)
    shapes = mesh_shapes.sizes(value, split, row_divisor(config),
                               jax.device_count())
    there = memory_estimate.device_memory(jax.local_devices()[0])
    shape = multihost.from_first(lambda: next(
        (shape for shape in shapes
         if there is None or need(config, split, learner, shape) <= there),
        shapes[-1]))
  return mesh_shapes.make(tuple(shape))


def split_architecture(config, learner):
  """Returns the architecture that "model" must divide: a teacher's, if any."""
  return checkpoints.architecture(config.teacher) if config.teacher else learner


def learner_size(mesh, learner: transformer.Config) -> int:
  """Returns how many devices split what is trained; 1: replicated."""
  if mesh is None:
    return 1
  value, size = mesh_lib.DRAFT_MESH.value, mesh.shape[sharding.MODEL]
  if value == mesh_shapes.AUTO:
    # A step has enough tokens that products take the time, not the sums.
    return mesh_shapes.split_size(learner, size)
  with launch.user_errors(ValueError):
    return mesh_shapes.draft_size(value, learner, size)


def need(config, target, learner, shape) -> int:
  """Estimates the bytes on a device of parameters, state and logits."""
  # `target` is the architecture of the teacher, or of what is trained without
  # one; `learner` as in `of_flags`; `shape` the sizes of "data" and "model".
  data, model = shape
  size = lambda x: transformer.num_params(transformer.abstract_params(x))
  state = 0 if config.head else 4 * _LEARNING * size(learner)
  teacher = size(target) * jnp.dtype(
      config.teacher_dtype or target.dtype).itemsize if config.teacher else 0
  logits = 4 * _LOGITS * config.batch_tokens * target.vocab_size // data
  return (teacher + state + logits) // model


def rows_of(config) -> list[int]:
  """Returns the rows of a step, for each length of text."""
  return [max(1, config.batch_tokens // length) for length in config.windows]


def row_divisor(config) -> int:
  """Returns the largest number that "data" may be: it divides all rows."""
  return math.gcd(*rows_of(config), *_written_rows(config))


def check_rows(config, value: str, data: int) -> None:
  """Raises a ValueError unless `data` devices divide the rows of a step."""
  rows = rows_of(config)
  if any(count % data for count in rows):
    enough = next(n for n in itertools.count(config.batch_tokens) if not any(
        n // length % data or n < length for length in config.windows))
    raise ValueError(
        f"--mesh={value}: data:{data} does not divide the "
        f"{' or '.join(map(str, dict.fromkeys(rows)))} rows of a step, "
        f"--config.batch_tokens={config.batch_tokens} over --config.windows="
        f"{tuple(config.windows)}. {enough} tokens can be divided.")
  for count in _written_rows(config):
    if count % data:
      raise ValueError(
          f"--mesh={value}: data:{data} does not divide {count} texts that the "
          "teacher writes together: --config.sample_batch="
          f"{config.sample_batch}, {own_texts.CHUNK} of --config.own_texts.")


def _written_rows(config) -> list[int]:
  own = own_texts.is_source(config)
  return [config.sample_batch] * bool(own or config.sample_fraction) + [
      own_texts.CHUNK] * own


def by_rows(mesh, compute):
  """Has each index of "data" compute its own rows, as in decoding."""
  # All arrays of rows and results of `compute(params, rows)` are `[B, ...]`.
  # Rows that "data" does not divide are left to the compiler as a whole.
  if mesh is None:
    return compute

  def call(params, rows):
    if len(jax.tree.leaves(rows)[0]) % mesh.shape[sharding.DATA]:
      return compute(params, rows)
    by_data = PartitionSpec(sharding.DATA)
    # check_vma=False: see `mesh._generate`.
    return jax.shard_map(
        compute, mesh=mesh, in_specs=(PartitionSpec(), by_data),
        out_specs=by_data, axis_names={sharding.DATA}, check_vma=False)(
            params, rows)

  return call


def logits(lm, mesh, compute=transformer.causal_logits):
  """Returns `(params, tokens [B, T]) -> logits [B, T, V]`, split over V."""
  return by_rows(mesh, lambda params, tokens: vocabulary.split(
      compute(lm, params, tokens)))


def put_rows(mesh, batch):
  """Puts arrays `[B, ...]` on the devices, by rows if they can be divided."""
  if mesh is None:
    return batch
  rows = len(jax.tree.leaves(batch)[0])
  divides = not rows % mesh.shape[sharding.DATA]
  return mesh_lib.put(mesh, PartitionSpec(sharding.DATA) if divides
                      else PartitionSpec(), batch)


def put(tree, shardings):
  """Puts arrays that every process has, or are there already, on a mesh."""
  return jax.tree.map(
      lambda x, where: x if getattr(x, "sharding", None) == where
      else mesh_lib.put(where.mesh, where.spec, x), tree, shardings)


def on_host(x):
  """Returns an array that is on any devices, or on the host already."""
  if getattr(x, "is_fully_addressable", True):
    return np.asarray(x)
  return multihost.on_host(x)


def load(folder, mesh, size=None, **options):
  """Reads a model onto a mesh; each process reads what its devices need."""
  # Layers are split over `size` devices; None for all of "model".
  if mesh is not None:
    options["shardings"] = sharding.shardings(
        checkpoints.architecture(folder), mesh, size)
  return checkpoints.load(folder, **options)


def of_head(mesh, size: int, vocab_size: int, params):
  """Returns how a head is split: matrices of logits, over `size` devices."""
  def where(x):
    split = size > 1 and x.shape[:1] == (vocab_size,) and not vocab_size % size
    return NamedSharding(mesh, PartitionSpec(sharding.MODEL) if split
                         else PartitionSpec())

  return jax.tree.map(where, params)


def of_state(mesh, shardings, state):
  """Returns how a training state is split: moments as their parameters."""
  known = {transformer.param_name(path): where for path, where
           in jax.tree_util.tree_leaves_with_path(shardings)}
  shapes = {transformer.param_name(path): leaf.shape for path, leaf
            in jax.tree_util.tree_leaves_with_path(state.params)}

  def where(path, leaf):
    keys = transformer.param_name(path).split("/")
    names = ("/".join(keys[i:]) for i in range(len(keys)))
    name = next((x for x in names if shapes.get(x) == leaf.shape), None)
    return known.get(name, NamedSharding(mesh, PartitionSpec()))

  return jax.tree_util.tree_map_with_path(where, state)


def teacher(lm, params, tokenizer, mesh) -> model_pair.ModelPair:
  """Returns a teacher as a pair of which `mesh.generate` writes texts."""
  if mesh is not None:
    lm = sharding.language_model(lm)
  return model_pair.ModelPair(lm, params, None, None, tokenizer, 0.0,
                              mesh=mesh)
