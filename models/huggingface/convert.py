"""Reads Hugging Face folders as models, and writes models as such folders."""

import collections
import dataclasses
import functools

import jax
import numpy as np

from decoding_jax import types
from models import transformer
from models.folders import atomic
from models.gguf import blocks
from models.huggingface import config as hf_config
from models.huggingface import tensor_files
from models.huggingface import tensor_names
from models.text import tokenizers
from models.transformer import layer_stack
from models.transformer import quantization


def from_hf(folder, *, scan_layers: bool = False, dtype: str | None = None,
            weights: str = quantization.DTYPE, shardings=None
            ) -> tuple[types.LanguageModel, types.Params]:
  """Reads a model of one of the families of `config.ARCHITECTURES`.

  One tensor after the other goes to the devices; on the host there is never
  more than one parameter of a layer, be layers scanned or not.

  Args:
    folder: with `config.json` and `*.safetensors`, or files of torch, in one
      piece or with an index.
    scan_layers: whether the layers are to be scanned.
    dtype: of parameters and activations; None: the folder's.
    weights: of matrices, one of `quantization.WEIGHTS`.
    shardings: `params -> tree of jax.sharding.Sharding`, called with the shapes
      of the parameters; None: on the default device.

  Raises:
    FileNotFoundError: if there is no such folder, or a file is missing.
    ValueError: naming a file, a field or a tensor that is wrong.
  """
  config, readers = open_folder(folder, dtype=dtype)
  config = dataclasses.replace(config, weights=weights)
  stored = weights == quantization.STORED
  if stored and (shardings is not None or scan_layers):
    raise ValueError(f"weights={weights!r}: layers cannot be scanned or split "
                     "over devices: their formats differ.")
  if shardings is None:
    device = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    shardings = lambda tree: jax.tree.map(lambda _: device, tree)

  def put(path, leaf, sharding):
    x = readers[transformer.param_name(path)](
        stored=stored and quantization.is_matrix(leaf))
    if stored:  # A matrix without groups has the type of activations.
      leaf, sharding = x, jax.tree.leaves(sharding)[0]
    return quantization.to_devices(leaf, sharding, x)

  config = dataclasses.replace(config, scan_layers=scan_layers)
  return transformer.language_model(config), layer_stack.place_all(
      transformer.abstract_params(config), shardings, put)


def open_folder(folder, *, dtype: str | None = None):
  """Opens a folder: its parameters are checked, but not read yet. Returns a
  `transformer.Config`, and a dict from the names of its parameters, such as
  "layers/layer_0/attention/key/kernel", to `() -> numpy array`."""
  config = hf_config.read(folder)
  config = dataclasses.replace(config, dtype=dtype or config.dtype)
  tensors = tensor_names.with_base(config, tensor_files.tensors(folder))
  readers, used = {}, set()
  for name, leaf in _named(transformer.abstract_params(config)):
    sources = _sources(folder, config, tensors, name, leaf.shape)
    readers[name] = functools.partial(_read, name, leaf, sources)
    used.update(piece.source for piece, _ in sources)
  tensor_names.check_rest(config, tensors, used)
  return config, readers


def abstract_params(folder, config: transformer.Config) -> types.Params:
  """Returns the shapes of a model's parameters; each matrix that stays as
  stored has the groups of its file."""
  params = transformer.abstract_params(config)
  if config.weights != quantization.STORED:
    return params
  tensors = tensor_names.with_base(config, tensor_files.tensors(folder))

  def of_file(path, leaf):
    if not quantization.is_matrix(leaf):
      return leaf
    shape = quantization.shape(leaf)
    stored = _stored(_sources(folder, config, tensors,
                              transformer.param_name(path), shape))
    if stored is None:
      return jax.ShapeDtypeStruct(shape, config.dtype)
    ggml_type, _ = stored
    size, _ = blocks.TYPES[ggml_type]
    row = lambda number: quantization.Matrix(*blocks.groups(
        ggml_type, np.zeros(number * size, np.uint8)))
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((*shape[:-1], x.size), x.dtype),
        row(shape[-1] // quantization.shape(row(1))[-1]))

  return jax.tree_util.tree_map_with_path(of_file, params,
                                          is_leaf=quantization.is_matrix)


def layer_tensors(path, config: transformer.Config, prefix: str,
                  tensors: dict) -> dict:
  """Returns `tensors`, but one layer's tensors replaced by its parameters.
  Tensors f"{prefix}.*" become f"{prefix}.{name}", such as the name
  "attention/key/kernel"; the architecture has `num_layers=1`."""
  rest, of_layer = dict(tensors), "layers/layer_0/"
  for name, leaf in _named(transformer.abstract_params(config)):
    if not name.startswith(of_layer):
      continue
    sources = _sources(path, config, tensors, name, leaf.shape, prefix)
    for piece, _ in sources:
      rest.pop(piece.source, None)
    rest[f"{prefix}.{name.removeprefix(of_layer)}"] = tensor_files.Tensor(
        sources[0][1].path, leaf.shape,
        functools.partial(_read, name, leaf, sources))
  return rest


def to_hf(folder, config: transformer.Config, params: types.Params,
          tokenizer=None) -> None:
  """Writes a model so that transformers loads it. The folder appears whole or
  not at all; an existing one is replaced. It has the format of `config.family`.
  Raises ValueError for what this has not."""
  with atomic.replacing(folder) as partial:
    eos_id = bos_id = None
    if tokenizer is not None:
      tokenizers.save(tokenizer, partial)
      tokenizers.describe(tokenizer, partial)
      eos_id = tokenizers.eos_id(tokenizer)
      bos_id = tokenizers.bos_id(tokenizer, partial)
    write(partial, config, params, eos_id, bos_id)


def write(folder, config: transformer.Config, params: types.Params,
          eos_id: int | None = None, bos_id: int | None = None) -> None:
  """Writes a model, without a tokenizer, into a folder that exists."""
  quantization.check_whole(config.weights, "written for transformers")
  fields = {**hf_config.fields(config), "bos_token_id": bos_id,
            "eos_token_id": eos_id}
  parts = collections.defaultdict(list)
  for name, leaf in _named(params):
    for at, piece in zip(np.ndindex(tensor_names.stacked(config, name)),
                         tensor_names.slices(config, name), strict=True):
      parts[piece.source].append((piece, leaf, at))
  for held in parts.values():
    held.sort(key=lambda part: part[0].part)

  def read(source):
    return parts[source][0][0].write(
        [np.asarray(leaf[at]) for _, leaf, at in parts[source]])

  shapes = {}
  for source, held in parts.items():
    piece, leaf, at = held[0]
    shapes[source] = piece.shape(leaf.shape[len(at):])
  tensor_files.write(folder / tensor_files.SAFETENSORS, shapes, config.dtype,
                     read)
  atomic.write_json(folder / hf_config.FILE, fields)


def _sources(folder, config, tensors, name, shape, prefix="model.layers.0"):
  """Returns pairs of a `TensorSlice` and its `Tensor`, of a parameter's shape:
  one, or one for each index of `tensor_names.stacked`."""
  slices = [piece._replace(source=piece.source.replace("model.layers.0", prefix)
                           ) for piece in tensor_names.slices(config, name)]
  of_one = shape[len(tensor_names.stacked(config, name)):]
  return [(piece, _checked(folder, tensors, piece.source, piece.shape(of_one)))
          for piece in slices]


def _stored(sources):
  """Returns `Tensor.stored` of a matrix that stays in groups, else None."""
  (piece, tensor), *others = sources
  return None if others or piece.transposed else tensor.stored


def _checked(folder, tensors, source, shape):
  """Returns a tensor; an error unless there is one of this shape to read."""
  if source not in tensors:
    raise ValueError(f"'{folder}': tensor {source} is missing.")
  tensor = tensors[source]
  if tensor.refusal or tensor.integer:
    refusal = tensor.refusal or "has integers: floats are needed."
    raise ValueError(f"'{tensor.path}': tensor {source} {refusal}")
  if tensor.shape != shape:
    raise ValueError(
        f"'{tensor.path}': tensor {source} has shape {tensor.shape}, but "
        f"{hf_config.FILE} asks for {shape}.")
  return tensor


def _read(name, leaf, sources, stored=False):
  """Reads a parameter as a numpy array of the leaf's shape and type. `stored`:
  as a `quantization.Matrix`, if it is in groups."""
  (piece, tensor), *others = sources
  if stored and _stored(sources):
    ggml_type, read = tensor.stored
    x = quantization.Matrix(*blocks.groups(ggml_type, piece.read(read())))
    for part in jax.tree.leaves((x.scales, x.least)):
      atomic.check_finite(tensor.path, name, part)
    return x
  if not others:
    x = piece.read(tensor.read()).astype(leaf.dtype, copy=False)
    x = np.ascontiguousarray(x).reshape(leaf.shape)
  else:
    x = np.empty(leaf.shape, leaf.dtype)
    for part, (piece, tensor) in zip(x.reshape(len(sources), -1), sources):
      part[...] = piece.read(tensor.read()).reshape(-1)
  atomic.check_finite(tensor.path, name, x)
  return x


def _named(tree):
  """Returns (name, leaf) of all parameters."""
  return [(transformer.param_name(path), leaf)
          for path, leaf in jax.tree_util.tree_leaves_with_path(tree)]
