"""Reads published heads on a target's features.

    EAGLE-1, -2  `fc` and `layers.0.*`, with the config of a Llama of one layer
    EAGLE-3      `midlayer.*`, or `layers.0.*` as the library speculators has it
    Medusa       `<head>.<block>.*` in a file medusa_lm_head
    DFlash, DSpark, JetSpec
                 `fc`, `hidden_norm` and layers of Qwen3 that share a target's
                 embedding and output layer
    FSPAD        `fc.fc`, `fc.mlp.*` and a layer of two outputs, else EAGLE-1
    MTP          modules in the checkpoint of a target, see `mtp_tensors`
    others       see `regressive_heads`

Names were read in sgl-project/SpecForge@89241ea0 (draft/llama3_eagle.py),
FasterDecoding/Medusa, z-lab/dflash@10129599 (dflash/model.py),
deepseek-ai/DeepSpec@5905deb7 (modeling/dspark) and Luc4Gui/FSPAD@1c2df5e2
(eagle/model/cnets_fspad.py).
"""

import dataclasses
import json
import pathlib
from typing import NamedTuple

from absl import logging
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import types
from models import transformer
from models.folders import atomic
from models.folders import json_files
from models.heads import block
from models.heads import eagle
from models.heads import medusa
from models.heads import mtp
from models.heads import prompt_tokens
from models.heads import target_ends
from models.huggingface import config as hf_config
from models.huggingface import head_fields
from models.huggingface import head_kinds
from models.huggingface import head_layers
from models.huggingface import mtp_tensors
from models.huggingface import regressive_heads
from models.huggingface import tensor_files
from models.transformer import quantization

_MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_FILES = {medusa: _MEDUSA_FILES[0], **{
    module: x.file for module, x in regressive_heads.FORMATS.items()}}
_PROMPTS = "PromptDecoder"
_MIDDLE = "midlayer"
# Parameter that is not in files: rows of the target's output layer.
_SHARED = "output"
# Copies of what the target has, masks of the draft vocabulary, and confidence
# heads, which decide how much is drafted, not what.
_UNUSED = ("t2d", "lm_head.weight", "embed_tokens.weight", "confidence_head.",
           "rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq",
           "fast_layer1.0.self_attn.rotary_emb.inv_freq",
           "prefix_embeding_layer.embed_tokens.weight",
           "prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq")
_METADATA = "metadata.json"
# What `save` writes.
PARTS = (hf_config.FILE, _METADATA, tensor_files.SAFETENSORS, *_FILES.values())


class Loaded(NamedTuple):
  """A head with its parameters.

  Attributes:
    head: to be given as `draft`.
    params: its parameters.
    kept: layers whose outputs the target is to keep, for
      `transformer.with_features`.
  """
  head: types.Head
  params: types.Params
  kept: tuple[int, ...]


def is_head(folder) -> bool:
  """Returns whether a folder holds a head, and no model."""
  path = pathlib.Path(folder)
  if any((path / name).is_file() for name in _MEDUSA_FILES):
    return True
  if not (path / hf_config.FILE).is_file():
    return False
  fields = json_files.read(path / hf_config.FILE)
  if head_kinds.is_named(fields):
    return True
  if fields.get("num_hidden_layers") != 1:
    return False
  try:
    found = tensor_files.tensors(path)
    return "fc.weight" in found or "fc.fc.weight" in found
  except (FileNotFoundError, ValueError):
    return False


def is_prompts(folder) -> bool:
  """Returns whether a folder holds prompt tokens, see `load_prompts`."""
  path = pathlib.Path(folder) / hf_config.FILE
  return path.is_file() and head_kinds.architecture(
      json_files.read(path)) == _PROMPTS


def load_prompts(folder, target: transformer.Config):
  """Reads prompt tokens of parallel prompt decoding.

  Args:
    folder: that `save` has written.
    target: the architecture of the target.

  Returns:
    The target that knows them, and `[prompts, F]`, which its parameters have as
    `prompts`.

  Raises:
    FileNotFoundError, ValueError: as of `load`.
  """
  path, tensors = pathlib.Path(folder), tensor_files.tensors(folder)
  name = _names(head_kinds.Kind(prompt_tokens, None, ()))["prompts"]
  count = (*(tensors[name].shape if name in tensors else ()), 1)[0]
  lm = transformer.with_prompts(target, count)
  return lm, _read(path, tensors, name, lm.abstract_params()["prompts"])


def open_folder(folder, target: transformer.Config, dtype: str | None = None,
                weights: str = quantization.DTYPE) -> Loaded:
  """Opens a head, whose parameters are shapes; as `load` in all else."""
  *_, kind, head = _opened(folder, target, dtype, weights)
  return Loaded(head, head.abstract_params(), kind.kept)


def load(folder, target: transformer.Config, dtype: str | None = None,
         weights: str = quantization.DTYPE, target_params=None) -> Loaded:
  """Reads a head.

  Args:
    folder: of the head.
    target: the architecture of the target.
    dtype: of its parameters and activations; None: that of the target.
    weights: format of its matrices, one of `quantization.WEIGHTS`.
    target_params: of the target, whose output layer some heads share.

  Returns:
    The head, its parameters, and what the target is to keep.

  Raises:
    FileNotFoundError: if a file is missing.
    ValueError: naming the field or tensor that is wrong, is not supported, or
      does not fit the target.
  """
  path, tensors, kind, head = _opened(folder, target, dtype, weights)
  names = _names(kind, _MIDDLE if f"{_MIDDLE}.hidden_norm.weight" in tensors
                 else "layers.0")
  used = set()

  def read(place, leaf):
    if transformer.param_name(place) == _SHARED:
      return leaf
    name = names[transformer.param_name(place)]
    used.add(name)
    return _read(path, tensors, name, leaf)

  params = jax.tree_util.tree_map_with_path(read, head.abstract_params(),
                                            is_leaf=quantization.is_matrix)
  _check_rest(path, tensors, used)
  if "tokens" in params:
    params["tokens"] = _draft_tokens(path, params["tokens"], target)
  if _SHARED in params:
    shared = target_ends.output_rows(target, target_params, params["tokens"])
    params[_SHARED] = _like(params[_SHARED], shared)
  return Loaded(head, params, kind.kept)


def _like(leaf, x):
  """Returns `x` in the format of a parameter."""
  return (quantization.quantize(x) if quantization.is_matrix(leaf)
          else x.astype(leaf.dtype))


def _opened(folder, target, dtype, weights):
  """Returns the folder, its tensors, its kind, and the head."""
  path, dtype = pathlib.Path(folder), dtype or target.dtype
  fields = head_fields.read(path)
  tensors = _tensors(path, fields)
  # What a head takes from the target it converts to its own type.
  target = dataclasses.replace(target, dtype=dtype, weights=quantization.DTYPE)
  module = mtp_tensors.find(tensors)
  if module:
    tensors = module.tensors
    kind = head_kinds.of_module(path, module, target, dtype)
  else:
    kind = head_kinds.of_folder(path, fields, tensors, target, dtype)
  kind = kind._replace(config=_with_weights(kind.config, weights))
  more = (len(kind.kept),) if kind.module is eagle else ()
  return path, tensors, kind, kind.module.head(kind.config, target, *more)


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
  """Writes a head as it is published, in the type of its parameters.

  The folder appears whole or not at all; an existing one is replaced.

  Args:
    folder: where to.
    module: such as `models.heads.eagle`.
    config: of the head.
    params: its parameters.
    kept: layers of the target that it reads.
    metadata: for people to read, written as JSON; or None.
    weights: format of its matrices, `quantization.DTYPE` or `INT8`.

  Raises:
    ValueError: for a head whose parameters have fewer bits already.
  """
  kind = head_kinds.Kind(module, config, tuple(kept))
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
  arrays, types = {}, {head_kinds.OFFSETS: np.int64}
  for place, leaf in jax.tree_util.tree_leaves_with_path(params):
    name = _names(kind)[transformer.param_name(place)]
    x = np.asarray(leaf[:, 0] if leaf.shape[1:] == (1,) else leaf)
    if x.ndim == 2 and weights == quantization.INT8:
      matrix = quantization.on_host(x)
      arrays |= {name: matrix.values, name + tensor_files.SCALE: matrix.scales}
      types |= {name: np.int8, name + tensor_files.SCALE: np.float32}
    else:
      arrays[name] = x
  file = _FILES.get(module, tensor_files.SAFETENSORS)
  with atomic.replacing(folder) as partial:
    (partial / hf_config.FILE).write_text(
        json.dumps(_fields(kind, dtypes[0]), indent=2) + "\n")
    tensor_files.write(partial / file, {k: x.shape for k, x in arrays.items()},
                       dtypes[0], arrays.__getitem__, types)
    if metadata is not None:
      (partial / _METADATA).write_text(json.dumps(metadata, indent=2) + "\n")


def _fields(kind, dtype):
  """Returns the `config.json` of a head."""
  config = kind.config
  if kind.module in regressive_heads.FORMATS:
    return regressive_heads.FORMATS[kind.module].fields(config, dtype)
  if kind.module is prompt_tokens:
    return {"architectures": [_PROMPTS], "num_virtual_tokens": config.prompts}
  if kind.module is medusa:
    return {"medusa_num_heads": config.heads,
            "medusa_num_layers": config.blocks}
  if kind.module is mtp:
    return head_layers.fields(config.layer, dtype) | {
        "architectures": [head_kinds.MTP[0]], "mtp_num_hidden_layers": 1}
  if kind.module is eagle:
    own = {"architectures": [head_kinds.EAGLE3[0] if config.version == 3
                             else "LlamaForCausalLM"],
           "model_type": "llama",
           "eagle_aux_hidden_state_layer_ids": [i + 1 for i in kind.kept],
           "norm_before_residual": config.norm_before_residual}
    if config.draft_vocab:
      own["draft_vocab_size"] = config.draft_vocab
    return head_layers.fields(config.layer, dtype) | own
  family = head_kinds.DSPARK if config.markov_rank else head_kinds.DFLASH
  own = {"architectures": [family[0]],
         "model_type": "qwen3", "block_size": config.block_size,
         "mask_token_id": config.mask_token,
         "target_layer_ids": list(kind.kept),
         "markov_rank": config.markov_rank, "markov_head_type": "vanilla",
         "sample_from_anchor": config.from_root,
         "causal_head": config.causal,
         "draft_vocab_size": config.draft_vocab}
  return head_layers.fields(config.layers, dtype) | own


def _tensors(path, fields):
  module = regressive_heads.kind(fields)
  if module:
    return regressive_heads.tensors(path, module)
  for name in _MEDUSA_FILES:
    if (path / name).is_file():
      return tensor_files.of_file(path / name)
  return tensor_files.tensors(path)


def _names(kind, prefix=_MIDDLE):
  """Returns the tensor of each parameter that a kind of heads may have.

  Args:
    kind: of the head.
    prefix: of the layer of EAGLE-3.
  """
  config = kind.config
  if kind.module in regressive_heads.FORMATS:
    return regressive_heads.FORMATS[kind.module].names(config)
  if kind.module is prompt_tokens:
    return {"prompts": "prompt_embeddings"}
  if kind.module is medusa:
    return {f"head_{i}_out": f"{i}.{config.blocks}.weight"
            for i in range(config.heads)} | {
                f"head_{i}_block_{j}/{end}": f"{i}.{j}.linear.{theirs}"
                for i in range(config.heads) for j in range(config.blocks)
                for end, theirs in (("kernel", "weight"), ("bias", "bias"))}
  if kind.module is block:
    names = {"network/fc/kernel": "fc.weight",
             "network/hidden_norm/scale": "hidden_norm.weight",
             "network/norm/scale": "norm.weight",
             "tokens": head_kinds.OFFSETS,
             "markov_in": "markov_head.markov_w1.weight",
             "markov_out": "markov_head.markov_w2.weight"}
    for i in range(config.layers.num_layers):
      names |= head_layers.names(f"network/layers/layer_{i}", f"layers.{i}")
    return names
  if kind.module is mtp:
    return {"layer/fc/kernel": mtp_tensors.PROJECTION,
            **{f"{ours}/scale": f"{theirs}.weight"
               for ours, theirs in mtp_tensors.NORMS.items()},
            **head_layers.names("layer/layer", mtp_tensors.LAYER)}
  fc = "fc.fc" if config.sampled_features else "fc"
  names = {"embedding": "embed_tokens.weight",
           "layer/fc/kernel": f"{fc}.weight", "layer/fc/bias": f"{fc}.bias"}
  if config.version == 1:
    names |= {f"layer/sample/{name}/kernel": f"fc.mlp.{name}_proj.weight"
              for name in ("gate", "up", "down")}
    names["layer/sample/norm/scale"] = "fc.post_attention_layernorm.weight"
    return names | head_layers.names("layer/layer", "layers.0")
  return names | {"tokens": head_kinds.OFFSETS,
                  "layer/norm/scale": "norm.weight",
                  "layer/output": "lm_head.weight",
                  **head_layers.names("layer", prefix)}


def _read(path, tensors, name, leaf):
  """Returns a tensor as a parameter."""
  if name not in tensors:
    raise ValueError(f"'{path}': tensor {name} is missing.")
  found, full = tensors[name], quantization.shape(leaf)
  # Vectors are columns here.
  shape = full[:1] if full[1:] == (1,) else full
  if found.refusal or found.shape != shape:
    raise ValueError(f"'{path}': tensor {name} "
                     f"{found.refusal or f'has shape {found.shape}'}: {shape} "
                     "fits the target and the config of the head.")
  if found.integer != (name == head_kinds.OFFSETS):
    raise ValueError(f"'{path}': tensor {name} has numbers of the wrong type: "
                     f"{'floating point ones' if found.integer else 'int64'} "
                     "are needed.")
  read = found.read().reshape(full)
  if found.integer:
    return read
  if quantization.is_matrix(leaf):
    return jax.tree.map(jnp.asarray, quantization.on_host(read))
  return jnp.asarray(read, leaf.dtype)


def _check_rest(path, tensors, used):
  rest = [name for name in sorted(tensors.keys() - used)
          if not name.startswith(_UNUSED)]
  if rest:
    raise ValueError(f"'{path}': tensor {rest[0]} is not one of a head of "
                     "this kind.")


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
