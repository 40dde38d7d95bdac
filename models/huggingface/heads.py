"""Reads and writes heads on a target's features, as they are published.

Each type of head has its format in its file: `FORMAT` of `models.heads.x`.

Names were read in sgl-project/SpecForge@89241ea0 (draft/llama3_eagle.py) and
@40f8587a (draft/domino.py), FasterDecoding/Medusa, z-lab/dflash@10129599 and
@07ebd93d (dflash/model.py),
deepseek-ai/DeepSpec@5905deb7 (modeling/dspark), Luc4Gui/FSPAD@1c2df5e2
(eagle/model/cnets_fspad.py), zankner/Hydra@3f39fbd2 (hydra/model),
XiaoBin1992/clover@9d37214a (clover/model/clover2.py) and kafkayu/Chimera@
1650c932 (Chimera_model). The layers of Hydra++ and Chimera have the sizes of
the target's: files hold none. What is written here is one file of safetensors.
"""

import dataclasses
import functools
import json
import pathlib
from typing import Any, NamedTuple

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import types
from models import heads as registry
from models import transformer
from models.folders import atomic
from models.folders import json_files
from models.heads.parts import formats
from models.heads.parts import target_ends
from models.huggingface import config as hf_config
from models.huggingface import convert
from models.huggingface import head_layers
from models.huggingface import tensor_files
from models.transformer import quantization

# Parameter that is not in files: rows of the target's output layer.
_SHARED = "output"
# Copies of what the target has, masks of the draft vocabulary, and confidence
# heads, which decide how much is drafted, not what.
_UNUSED = ("t2d", "lm_head.weight", "embed_tokens.weight", "confidence_head.",
           "rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq")
_METADATA = "metadata.json"
# What `save` writes.
PARTS = (hf_config.FILE, _METADATA, tensor_files.SAFETENSORS,
         "medusa_lm_head.safetensors", "hydra_lm_head.safetensors",
         "chimera.safetensors")


class _Opened(NamedTuple):
  """A folder that is open; `kept` are layers of the target that it reads."""
  module: Any
  format: formats.Format
  folder: formats.Folder
  config: Any
  kept: tuple[int, ...]


class Loaded(NamedTuple):
  """A head and its parameters; `kept` is for `transformer.with_features`."""
  head: types.Head
  params: types.Params
  kept: tuple[int, ...]


def is_head(folder) -> bool:
  """Returns whether a folder holds a head, and no model."""
  path = pathlib.Path(folder)
  by_file = [x for x in _formats().values() if any(map(bool, x.files))]
  if any(_files_of(path, x) for x in by_file):
    return True
  if not (path / hf_config.FILE).is_file():
    return False
  fields = json_files.read(path / hf_config.FILE)
  module = _named(fields)
  if module or formats.SPECULATORS in fields:
    return module is None or hasattr(module, "head")
  if fields.get("num_hidden_layers") != 1:
    return False
  try:
    tensors = tensor_files.tensors(path)
    return "fc.weight" in tensors or "fc.fc.weight" in tensors
  except (FileNotFoundError, ValueError):
    return False


def saved_weights(folder) -> str:
  """Returns `quantization.INT8` if matrices are saved so, else `DTYPE`."""
  path = pathlib.Path(folder)
  tensors = _tensors(path, _format_of(_module(path, _fields(path))))
  return (quantization.INT8 if any(x.eight_bits for x in tensors.values())
          else quantization.DTYPE)


def is_prompts(folder) -> bool:
  """Returns whether a folder holds prompt tokens, see `load_prompts`."""
  path = pathlib.Path(folder) / hf_config.FILE
  module = _named(json_files.read(path)) if path.is_file() else None
  return module is not None and not hasattr(module, "head")


def load_prompts(folder, target: transformer.Config):
  """Reads prompt tokens of parallel prompt decoding. Returns the target that
  knows them, and its parameter `prompts [prompts, F]`."""
  opened = _opened(folder, target, target.dtype)
  lm = opened.module.target(opened.config, target)
  name = opened.format.names(opened.config, {})["prompts"]
  return lm, _read(opened.folder.path, opened.folder.tensors, name,
                   lm.abstract_params()["prompts"])


def open_folder(folder, target: transformer.Config, dtype: str | None = None,
                weights: str = quantization.DTYPE) -> Loaded:
  """Opens a head, whose parameters are shapes; as `load` in all else."""
  opened = _opened(folder, target, dtype, weights)
  head = opened.module.head(opened.config, opened.folder.target)
  return Loaded(head, head.abstract_params(), opened.kept)


def config(folder, target: transformer.Config):
  """Returns the config of a head, such as a `block.Config`; see `load`."""
  return _opened(folder, target, None).config


def load(folder, target: transformer.Config, dtype: str | None = None,
         weights: str = quantization.DTYPE, target_params=None) -> Loaded:
  """Reads a head. Its type is the target's where `dtype` is None;
  `target_params` are needed where it shares the target's output layer. Raises
  FileNotFoundError; and ValueError, naming a field or tensor that is wrong or
  unlike the target."""
  opened = _opened(folder, target, dtype, weights)
  path, tensors = opened.folder.path, opened.folder.tensors
  head = opened.module.head(opened.config, opened.folder.target)
  names = opened.format.names(opened.config, tensors)
  used = set()

  def read(key, leaf):
    if transformer.param_name(key) == _SHARED:
      return leaf
    name = names[transformer.param_name(key)]
    used.add(name)
    return _read(path, tensors, name, leaf)

  params = jax.tree_util.tree_map_with_path(read, head.abstract_params(),
                                            is_leaf=quantization.is_matrix)
  _check_rest(path, tensors, used, _UNUSED + opened.format.unused)
  if "tokens" in params:
    params["tokens"] = _draft_tokens(path, params["tokens"], target)
  if _SHARED in params:
    leaf, shared = params[_SHARED], target_ends.output_rows(
        target, target_params, params["tokens"])
    params[_SHARED] = (quantization.tree(leaf, shared) if
                       quantization.is_matrix(leaf)
                       else shared.astype(leaf.dtype))
  return Loaded(head, params, opened.kept)


@functools.cache
def _formats_of(names):
  del names  # They differ where `models.heads.__path__` is longer.
  return {module: formats.of_module(module)
          for module in registry.modules().values()}


def _formats():
  """Returns the formats of all heads, by their modules."""
  return _formats_of(tuple(registry.names()))


def _named(fields):
  """Returns the module of the head that a config names, or None."""
  name = formats.architecture(fields)
  named = [module for module, x in _formats().items() if x.field in fields] + [
      module for module, x in _formats().items() if name in x.architectures]
  return named[0] if named else None


def _files_of(path, format_):
  """Returns the first set of files that a folder has of a format, or None."""
  return next((files for files in format_.files if files and
               (path / next(iter(files))).is_file()), None)


def _opened(folder, target, dtype, weights=quantization.DTYPE) -> _Opened:
  path, dtype = pathlib.Path(folder), dtype or target.dtype
  fields = _fields(path)
  module = _module(path, fields)
  format_ = _format_of(module)
  tensors = _tensors(path, format_)
  if not module:
    module = next((x for x, opened in _formats().items()
                   if opened.holds(tensors)), None)
    if not module:
      raise ValueError(f"'{path}' holds no head of a known type: "
                       f"{', '.join(registry.names())}.")
    format_ = _formats()[module]
  # What a head takes from the target it converts to its own type.
  target = dataclasses.replace(target, dtype=dtype, weights=quantization.DTYPE)
  opened = formats.Folder(
      path, fields, tensors, target, dtype,
      lambda fields, *args, **kwargs: head_layers.config(
          path, fields, dtype, target, tensors, *args, **kwargs))
  config, kept = format_.config(opened)
  tensors, layer = format_.select(tensors), format_.layer(config)
  if layer:
    tensors = convert.layer_tensors(path, *layer, tensors)
  return _Opened(module, format_, opened._replace(tensors=tensors),
                 _with_weights(config, weights), kept)


def _module(path, fields):
  """Returns the module that a config or files of a folder name, or None."""
  return _named(fields) or next(
      (x for x, form in _formats().items() if _files_of(path, form)), None)


def _format_of(module):
  """Returns the format of a module; of a model's files for None."""
  return _formats().get(module, formats.Format(None, None, None))


def _fields(path):
  """Returns the fields of a head's config, which have been checked."""
  path = path / hf_config.FILE
  known = dict(formats.FIELDS)
  for format_ in _formats().values():
    known |= format_.known
  fields = json_files.read(path)
  with json_files.naming(path):
    return formats.checked(fields, known)


def _tensors(path, format_):
  """Opens the tensors of a head."""
  files = _files_of(path, format_)
  files = format_.files[-1] if files is None else files
  if not files:
    return tensor_files.tensors(path)
  return {f"{start}{name}": x for file, start in files.items()
          for name, x in tensor_files.of_file(path / file).items()}


def _with_weights(config, weights):
  """Returns the config of a head with matrices of another format."""
  changed = {name: dataclasses.replace(getattr(config, name), weights=weights)
             for name in ("layer", "layers", "prefix")
             if getattr(config, name, None)}
  if hasattr(config, "weights"):
    changed["weights"] = weights
  return dataclasses.replace(config, **changed)


def save(folder, module, config, params, kept, metadata=None,
         weights=quantization.DTYPE) -> None:
  """Writes a head as it is published, in the type of its parameters. The folder
  appears whole or not at all; an existing one is replaced. `module` is such as
  `models.heads.eagle`, `kept` has the layers of the target that it reads,
  `metadata` is for people to read."""
  format_ = formats.of_module(module)
  if getattr(getattr(config, "layer", None), "latent_dim", 0):
    raise ValueError(f"latent_dim={config.layer.latent_dim}: a head with "
                     "latent attention cannot be saved.")
  names, fields = format_.names(config, {}), format_.fields
  dtypes = sorted({str(x.dtype) for name, x in params.items()
                   if name != "tokens" for x in jax.tree.leaves(x)})
  if len(dtypes) > 1:
    raise ValueError(f"params are of {' and '.join(dtypes)}: a head of one "
                     "type can be saved; give other weights when it is loaded.")
  params = {name: x for name, x in params.items() if name != _SHARED}
  if "tokens" in params:
    # Files count from the entry of the draft vocabulary.
    params["tokens"] = np.asarray(params["tokens"]) - np.arange(
        len(params["tokens"]))
  arrays, types = {}, {formats.OFFSETS: np.int64}
  for key, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = names[transformer.param_name(key)]
    x = np.asarray(leaf)
    if x.ndim == 2 and weights == quantization.INT8:
      matrix = quantization.on_host(x)
      arrays |= {name: matrix.values, name + tensor_files.SCALE: matrix.scales}
      types |= {name: np.int8, name + tensor_files.SCALE: np.float32}
    else:
      arrays[name] = x
  file = next(iter(format_.files[0]), tensor_files.SAFETENSORS)
  with atomic.replacing(folder) as partial:
    (partial / hf_config.FILE).write_text(
        json.dumps(fields(config, tuple(kept), dtypes[0]), indent=2) + "\n")
    tensor_files.write(partial / file, {k: x.shape for k, x in arrays.items()},
                       dtypes[0], arrays.__getitem__, types)
    if metadata is not None:
      (partial / _METADATA).write_text(json.dumps(metadata, indent=2) + "\n")


def _read(path, tensors, name, leaf):
  """Returns a tensor as a parameter."""
  if name not in tensors:
    raise ValueError(f"'{path}': tensor {name} is missing.")
  tensor, shape = tensors[name], quantization.shape(leaf)
  if tensor.refusal or tensor.shape != shape:
    raise ValueError(f"'{path}': tensor {name} "
                     f"{tensor.refusal or f'has shape {tensor.shape}'}: "
                     f"{shape} fits the target and the config of the head.")
  if tensor.integer != (name == formats.OFFSETS):
    raise ValueError(f"'{path}': tensor {name} has numbers of the wrong type: "
                     f"{'floating point ones' if tensor.integer else 'int64'} "
                     "are needed.")
  read = tensor.read()
  if tensor.integer:
    return read
  if quantization.is_matrix(leaf):
    return jax.tree.map(jnp.asarray, quantization.on_host(
        read, quantization.format_of(leaf)))
  return jnp.asarray(read, leaf.dtype)


def _check_rest(path, tensors, used, unused):
  rest = [name for name in sorted(tensors.keys() - used)
          if not name.startswith(unused)]
  if rest:
    raise ValueError(f"'{path}': tensor {rest[0]} is not one of a head of "
                     "this type.")


def _draft_tokens(path, offsets, target):
  """Returns the token of each entry of a draft vocabulary."""
  if 1 < len(offsets) < target.vocab_size and not offsets.any():
    logging.warning(
        "'%s': tensor d2t is all zeros, as before it is filled: the first %d "
        "tokens of the target are drafted, and no others.", path, len(offsets))
  tokens = np.arange(len(offsets)) + offsets
  if tokens.min() < 0 or tokens.max() >= target.vocab_size or (
      len(set(tokens)) < len(tokens)):
    raise ValueError(f"'{path}': tensor d2t leads to tokens from {tokens.min()}"
                     f" to {tokens.max()}: different ones of the target's 0 to "
                     f"{target.vocab_size - 1} are needed.")
  return jnp.asarray(tokens, jnp.int32)
