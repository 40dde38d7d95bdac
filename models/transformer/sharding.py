"""Models on a mesh of devices: rows by "data", heads and units by "model".

Layers are split as by Megatron (Shoeybi et al. 2019, arXiv 1909.08053):
attention, feed-forward layer and embedding each end in one sum over "model";
logits stay split over the vocabulary. Models run inside of `jax.shard_map` over
"data", where "model" is left to the compiler, by `language_model` of this
module.
"""

import functools
import re

import jax
from jax.sharding import NamedSharding, PartitionSpec

from decoding_jax import types
from decoding_jax.kernels import split_slots
from decoding_jax.kernels import vocabulary
from models.transformer import architecture
from models.transformer import language_models
from models.transformer import layer_stack
from models.transformer import moe
from models.transformer import parameters

DATA, MODEL = "data", "model"


def partition(config: architecture.Config) -> list[int]:
  """Returns over how many devices a layer can be split, ascending."""
  return [n for n in range(1, config.num_heads + 1)
          if not config.num_heads % n and (
              not config.hidden_dim % n or by_experts(config, n))]


def by_experts(config: architecture.Config, size: int) -> bool:
  """Returns whether each of `size` devices has some experts whole."""
  return moe.by_experts(config.num_experts, config.hidden_dim, size)


def check(config: architecture.Config, size: int) -> None:
  """Raises ValueError unless a layer can be split over `size` devices.
  Key/value heads, vocabularies and a shared expert that do not divide are no
  error: every device has all of their parameters."""
  if size not in partition(config):
    raise ValueError(
        f"{MODEL}:{size} does not divide num_heads={config.num_heads} and "
        f"hidden_dim={config.hidden_dim}"
        + (f" or num_experts={config.num_experts}" if config.num_experts else
           "") + "; it can be one of "
        f"{', '.join(map(str, partition(config)))}.")


def specs(config: architecture.Config, size: int,
          params: types.Params) -> types.Params:
  """Returns a tree of `PartitionSpec` of parameters, or of their shapes. A
  layer is split over `size` devices. Raises ValueError for a parameter that was
  declared without axes."""
  check(config, size)
  declared = language_models.mesh_axes(config)
  counts = {parameters.HEADS: config.num_heads,
            parameters.KV_HEADS: config.num_kv_heads,
            # In a mixture, hidden units are the experts'.
            parameters.HIDDEN: config.hidden_dim,
            parameters.EXPERTS: config.num_experts,
            parameters.SHARED: config.shared_dim,
            parameters.LINEAR: config.linear_key_heads,
            parameters.DENSE: config.dense_dim,
            parameters.VOCAB: config.outputs or config.vocab_size}

  whole = (parameters.HIDDEN if by_experts(config, size)
           else parameters.EXPERTS)

  def spec(path, leaf):
    name = re.sub("/(values|scales)$", "", parameters.param_name(path))
    axes = declared.get(layer_stack.of_first_layer(name, config.dense_layers))
    if axes is None:
      raise ValueError(
          f"parameter {name} has no mesh axes: parameters.declare(..., axes) "
          "says how it is split over devices, parameters.WHOLE for not at all.")
    # An axis of one belongs to scales after a sum over the inputs.
    split = [MODEL if (axis not in (None, whole) and size > 1 and length > 1
                       and not counts[axis] % size) else None
             for axis, length in zip(axes, leaf.shape[-len(axes):])]
    return PartitionSpec(*(None,) * (leaf.ndim - len(split)), *split)

  return jax.tree_util.tree_map_with_path(spec, params)


def shardings(config: architecture.Config, mesh: jax.sharding.Mesh,
              size: int | None = None):
  """Returns what `checkpoints.load` takes as `shardings`. The mesh has axes
  "data" and "model". `size` is the number of devices that a layer is split
  over: 1, or None for all of "model"."""
  size = mesh.shape[MODEL] if size is None else size
  return lambda params: jax.tree.map(
      functools.partial(NamedSharding, mesh), specs(config, size, params),
      is_leaf=lambda x: isinstance(x, PartitionSpec))


@functools.lru_cache(maxsize=None)
def language_model(lm: types.LanguageModel,
                   whole: bool = False) -> types.LanguageModel:
  """Returns a model for `jax.shard_map` over "data"; equal ones are cached.
  Logits, and distributions made of them, stay split over the vocabulary. Caches
  are split by heads, and by slots as far as these do not divide. `whole`: every
  device has all layers and caches."""
  def init_cache(batch, capacity):
    cache = lm.init_cache(batch, capacity)
    if whole:
      on_all = lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec())
      return cache.replace(keys=jax.tree.map(on_all, cache.keys),
                           values=jax.tree.map(on_all, cache.values),
                           states=jax.tree.map(on_all, cache.states))
    empty = lambda arrays, axis: tuple(
        split_slots.zeros(x.shape, x.dtype, axis) for x in arrays)
    return cache.replace(keys=empty(cache.keys, -1),
                         values=empty(cache.values, -2))

  def forward(*args):
    logits, block = lm.forward(*args)
    return vocabulary.split(logits), block

  return lm._replace(init_cache=init_cache, forward=forward)


@functools.lru_cache(maxsize=None)
def head(inner: types.Head) -> types.Head:
  """Returns a head on a split target, computed by every device of a row. Its
  parameters are on all devices. Its logits are split over the vocabulary, as
  the target's are."""
  def whole(compute):
    return lambda *args: jax.lax.with_sharding_constraint(
        compute(*args), PartitionSpec())

  def logits(*args):
    logits, draft = inner.logits(*args)
    return vocabulary.split(logits), jax.lax.with_sharding_constraint(
        draft, PartitionSpec())

  return inner._replace(read=whole(inner.read), start=whole(inner.start),
                        logits=logits)
