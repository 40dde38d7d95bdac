"""Reads published heads on a target's features.

    EAGLE-1, -2  `fc` and `layers.0.*`, with the config of a Llama of one layer
    EAGLE-3      `midlayer.*`, or `layers.0.*` as the library speculators has it
    Medusa       `<head>.<block>.*` in a file medusa_lm_head
    DFlash, DSpark, JetSpec
                 `fc`, `hidden_norm` and layers of Qwen3 that share a target's
                 embedding and output layer
    MTP          modules in the checkpoint of a target, see `mtp_tensors`

Names were read in sgl-project/SpecForge@89241ea0 (draft/llama3_eagle.py),
FasterDecoding/Medusa, z-lab/dflash@10129599 (dflash/model.py) and
deepseek-ai/DeepSpec@5905deb7 (modeling/dspark).
"""

import dataclasses
import json
import pathlib
from typing import NamedTuple

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
from models.huggingface import config as hf_config
from models.huggingface import mtp_tensors
from models.huggingface import tensor_files

_EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM",
           "Eagle3Speculator", "Eagle3DraftModel")
_BLOCKS = ("DFlashDraftModel", "Qwen3DSparkModel", "DSparkDraftModel")
_MTP = ("Qwen3NextMTP", "DeepSeekMTPModel", "Glm4MoeMTPModel", "MiMoMTPModel")
_MEDUSA_FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
_PROMPTS = "PromptDecoder"
_MIDDLE = "midlayer"
# Of a config, what describes the layers of a head as those of a Llama.
_LAYER_FIELDS = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "rms_norm_eps", "rope_theta", "rope_scaling",
    "rope_parameters", "max_position_embeddings", "hidden_act",
    "attention_bias", "mlp_bias", "vocab_size", "torch_dtype", "dtype",
    "num_hidden_layers")
# Variants of EAGLE-3 that change the computation, and are not computed here.
_OFF = ("norm_before_fc", "fc_norm", "norm_output", "input_norm")
# Copies of what the target has, masks of the draft vocabulary, and confidence
# heads, which decide how much is drafted, not what.
_UNUSED = ("t2d", "lm_head.weight", "embed_tokens.weight", "confidence_head.",
           "rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq")
_LAYER = {
    "attention/query": "self_attn.q_proj", "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj", "attention/out": "self_attn.o_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "attention_norm": "input_layernorm", "embed_norm": "input_layernorm",
    "feature_norm": "hidden_norm",
    "middle_norm": "post_attention_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward/gate": "mlp.gate_proj", "feed_forward/up": "mlp.up_proj",
    "feed_forward/down": "mlp.down_proj"}
_METADATA = "metadata.json"
_ENDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}


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


class _Kind(NamedTuple):
  """What a folder holds: module, architecture, and layers that it reads."""
  module: object
  config: object
  kept: tuple[int, ...]


def is_head(folder) -> bool:
  """Returns whether a folder holds a head, and no model."""
  path = pathlib.Path(folder)
  if any((path / name).is_file() for name in _MEDUSA_FILES):
    return True
  if not (path / hf_config.FILE).is_file():
    return False
  fields = json_files.read(path / hf_config.FILE)
  if _architecture(fields) in _EAGLE3 + _BLOCKS + _MTP or (
      "speculators_model_type" in fields):
    return True
  if fields.get("num_hidden_layers") != 1:
    return False
  try:
    return "fc.weight" in tensor_files.tensors(path)
  except (FileNotFoundError, ValueError):
    return False


def is_prompts(folder) -> bool:
  """Returns whether a folder holds prompt tokens, see `load_prompts`."""
  path = pathlib.Path(folder) / hf_config.FILE
  return path.is_file() and _architecture(json_files.read(path)) == _PROMPTS


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
  path, tensors = pathlib.Path(folder), _tensors(pathlib.Path(folder))
  name = _names(_Kind(prompt_tokens, None, ()))["prompts"]
  count = tensors[name].shape[0] if name in tensors else 1
  lm = transformer.with_prompts(target, count)
  return lm, _read(path, tensors, name, lm.abstract_params()["prompts"])


def open_folder(folder, target: transformer.Config,
                dtype: str | None = None) -> Loaded:
  """Opens a head, whose parameters are shapes; as `load` in all else."""
  path, _, _, kind = _opened(folder, target, dtype)
  head = _head(kind, target)
  return Loaded(head, head.abstract_params(), kind.kept)


def load(folder, target: transformer.Config,
         dtype: str | None = None) -> Loaded:
  """Reads a head.

  Args:
    folder: of the head.
    target: the architecture of the target.
    dtype: of its parameters; None: that of the target.

  Returns:
    The head, its parameters, and what the target is to keep.

  Raises:
    FileNotFoundError: if a file is missing.
    ValueError: naming the field or tensor that is wrong, is not supported, or
      does not fit the target.
  """
  path, tensors, _, kind = _opened(folder, target, dtype)
  head = _head(kind, target)
  names = _names(kind, _MIDDLE if f"{_MIDDLE}.hidden_norm.weight" in tensors
                 else "layers.0")
  used = set()

  def read(place, leaf):
    name = names[transformer.param_name(place)]
    used.add(name)
    return _read(path, tensors, name, leaf)

  params = jax.tree_util.tree_map_with_path(read, head.abstract_params())
  _check_rest(path, tensors, used)
  if "tokens" in params:
    params["tokens"] = _draft_tokens(path, params["tokens"], target)
  return Loaded(head, params, kind.kept)


def _opened(folder, target, dtype):
  """Returns the folder, its tensors, the type of the head, and its kind."""
  path, dtype = pathlib.Path(folder), dtype or target.dtype
  fields = json_files.read(path / hf_config.FILE)
  tensors = _tensors(path)
  found = mtp_tensors.find(tensors)
  if found:
    return path, found.tensors, dtype, _mtp(path, found, target, dtype)
  return path, tensors, dtype, _kind(path, fields, tensors, target, dtype)


def _head(kind, target):
  more = (len(kind.kept),) if kind.module is eagle else ()
  return kind.module.head(kind.config, target, *more)


def save(folder, module, config, params, kept, metadata=None) -> None:
  """Writes a head as it is published, in the type of its parameters.

  The folder appears whole or not at all; an existing one is replaced.

  Args:
    folder: where to.
    module: `models.heads.eagle`, `medusa`, `block`, `mtp` or `prompt_tokens`.
    config: of the head.
    params: its parameters.
    kept: layers of the target that it reads.
    metadata: for people to read, written as JSON; or None.

  Raises:
    ValueError: for a head with a draft vocabulary.
  """
  kind = _Kind(module, config, tuple(kept))
  if getattr(config, "draft_vocab", 0):
    raise ValueError(f"draft_vocab={config.draft_vocab}: heads that draft all "
                     "tokens can be written.")
  names = {}
  for place, leaf in jax.tree_util.tree_leaves_with_path(params):
    names[_names(kind)[transformer.param_name(place)]] = np.asarray(
        leaf[:, 0] if leaf.shape[1:] == (1,) else leaf)
  file = (_MEDUSA_FILES[0] if module is medusa else tensor_files.SAFETENSORS)
  dtype = str(jax.tree.leaves(params)[0].dtype)
  with atomic.replacing(folder) as partial:
    (partial / hf_config.FILE).write_text(
        json.dumps(_fields(kind, dtype), indent=2) + "\n")
    tensor_files.write(partial / file, {k: x.shape for k, x in names.items()},
                       dtype, names.__getitem__)
    if metadata is not None:
      (partial / _METADATA).write_text(json.dumps(metadata, indent=2) + "\n")


def _fields(kind, dtype):
  """Returns the `config.json` of a head."""
  config = kind.config
  if kind.module is prompt_tokens:
    return {"architectures": [_PROMPTS], "num_virtual_tokens": config.prompts}
  if kind.module is medusa:
    return {"medusa_num_heads": config.heads,
            "medusa_num_layers": config.blocks}
  if kind.module is mtp:
    return _layer_fields(config.layer, dtype) | {
        "architectures": [_MTP[0]], "mtp_num_hidden_layers": 1}
  if kind.module is eagle:
    own = {"architectures": [_EAGLE3[0] if config.version == 3
                             else "LlamaForCausalLM"],
           "model_type": "llama",
           "eagle_aux_hidden_state_layer_ids": [i + 1 for i in kind.kept],
           "norm_before_residual": config.norm_before_residual}
    return _layer_fields(config.layer, dtype) | own
  own = {"architectures": [_BLOCKS[1] if config.markov_rank else _BLOCKS[0]],
         "model_type": "qwen3", "block_size": config.block_size,
         "mask_token_id": config.mask_token,
         "target_layer_ids": list(kind.kept),
         "markov_rank": config.markov_rank, "markov_head_type": "vanilla",
         "sample_from_anchor": config.from_root,
         "causal_head": config.causal}
  return _layer_fields(config.layers, dtype) | own


def _layer_fields(config, dtype):
  return {"hidden_size": config.dim, "num_attention_heads": config.num_heads,
          "num_key_value_heads": config.num_kv_heads,
          "head_dim": config.head_dim, "intermediate_size": config.hidden_dim,
          "rms_norm_eps": config.norm_eps, "rope_theta": config.rope_theta,
          "max_position_embeddings": config.max_length, "hidden_act": "silu",
          "num_hidden_layers": config.num_layers,
          "vocab_size": config.vocab_size, "torch_dtype": dtype}


def _tensors(path):
  for name in _MEDUSA_FILES:
    if (path / name).is_file():
      return tensor_files.of_file(path / name)
  return tensor_files.tensors(path)


def _architecture(fields):
  return (list(fields.get("architectures") or []) + [None])[0]


def _kind(path, fields, tensors, target, dtype):
  """Returns what is in the folder as a `_Kind`."""
  if "medusa_num_heads" in fields or any(
      name.startswith("0.0.") for name in tensors):
    return _medusa(tensors, target.num_layers - 1)
  if _architecture(fields) in _BLOCKS:
    return _block(path, fields, tensors, target, dtype)
  if "midlayer.hidden_norm.weight" in tensors or (
      "layers.0.hidden_norm.weight" in tensors):
    return _eagle3(path, fields, tensors, target, dtype)
  if "fc.weight" in tensors:
    return _eagle1(path, fields, tensors, target, dtype)
  raise ValueError(f"'{path}' holds no head of a kind that is known: EAGLE, "
                   "Medusa, DFlash, DSpark, JetSpec or MTP.")


def _mtp(path, found, target, dtype):
  unlike = [name for name in ("num_experts", "sandwich_norm", "reordered_norm",
                              "parallel") if getattr(target, name)]
  if unlike or target.norm == "layer":
    raise ValueError(f"'{path}': a next-token module with a layer like those "
                     f"of the target, {(unlike or ['norm'])[0]}="
                     f"{getattr(target, (unlike or ['norm'])[0])!r}, is not "
                     "supported; layers of Llama, Qwen2 and Qwen3 are.")
  layer = dataclasses.replace(mtp.layer_of(target), dtype=dtype)
  return _Kind(mtp, mtp.Config(layer, found.is_mimo), (target.num_layers - 1,))


def _medusa(tensors, last):
  heads = 1 + max(int(name.split(".")[0]) for name in tensors)
  blocks = max(int(name.split(".")[1]) for name in tensors)
  return _Kind(medusa, medusa.Config(heads, blocks), (last,))


def _eagle1(path, fields, tensors, target, dtype):
  config = eagle.Config(
      _layers(path, fields, dtype), version=1, bias="fc.bias" in tensors,
      own_embedding=_own_embedding(tensors, target))
  return _Kind(eagle, config, (target.num_layers - 1,))


def _eagle3(path, fields, tensors, target, dtype):
  for name in _OFF:
    if fields.get(name):
      raise ValueError(f"'{path}': {name}={fields[name]!r} is not supported; "
                       "false is.")
  inner = fields.get("transformer_layer_config", fields)
  more = fields.get("eagle_config") or {}
  ids = fields.get("eagle_aux_hidden_state_layer_ids",
                   more.get("eagle_aux_hidden_state_layer_ids"))
  # A file counts the layers before a feature.
  kept = tuple(i - 1 for i in ids) if ids else eagle.taps(target)
  _check_kept(path, kept, target)
  size = fields.get("draft_vocab_size") or 0
  return _Kind(eagle, eagle.Config(
      _layers(path, inner, dtype), draft_vocab=size if "d2t" in tensors else 0,
      own_embedding=_own_embedding(tensors, target),
      norm_before_residual=bool(fields.get(
          "norm_before_residual", "speculators_model_type" in fields))), kept)


def _block(path, fields, tensors, target, dtype):
  del tensors
  more = {**fields, **(fields.get("dflash_config") or {})}
  if more.get("markov_head_type", "vanilla") != "vanilla":
    raise ValueError(f"'{path}': markov_head_type="
                     f"{more['markov_head_type']!r} is not supported; "
                     "'vanilla' is.")
  for name in ("block_size", "mask_token_id", "target_layer_ids"):
    if name not in more:
      raise ValueError(f"'{path}': no field {name!r}.")
  kept = tuple(more["target_layer_ids"])
  _check_kept(path, kept, target)
  rank = int(more.get("markov_rank") or 0)
  return _Kind(block, block.Config(
      _layers(path, fields, dtype, "qwen3"), int(more["block_size"]),
      int(more["mask_token_id"]), len(kept), rank,
      from_root=bool(more.get("sample_from_anchor", rank > 0)),
      causal=bool(more.get("causal_head"))), kept)


def _names(kind, prefix=_MIDDLE):
  """Returns the tensor of each parameter that a kind of heads may have.

  Args:
    kind: of the head.
    prefix: of the layer of EAGLE-3.
  """
  config = kind.config
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
             "markov_in": "markov_head.markov_w1.weight",
             "markov_out": "markov_head.markov_w2.weight"}
    for i in range(config.layers.num_layers):
      names |= _layer_names(f"network/layers/layer_{i}", f"layers.{i}")
    return names
  if kind.module is mtp:
    return {"layer/fc/kernel": mtp_tensors.PROJECTION,
            **{f"{ours}/scale": f"{theirs}.weight"
               for ours, theirs in mtp_tensors.NORMS.items()},
            **_layer_names("layer/layer", mtp_tensors.LAYER)}
  names = {"embedding": "embed_tokens.weight", "layer/fc/kernel": "fc.weight",
           "layer/fc/bias": "fc.bias"}
  if config.version == 1:
    return names | _layer_names("layer/layer", "layers.0")
  return names | {"tokens": "d2t", "layer/norm/scale": "norm.weight",
                  "layer/output": "lm_head.weight",
                  **_layer_names("layer", prefix)}


def _layers(path, fields, dtype, family="llama"):
  """Returns the architecture of the layers of a head."""
  given = {name: fields[name] for name in _LAYER_FIELDS if name in fields}
  config = hf_config.parse(path / hf_config.FILE, {
      "num_hidden_layers": 1, **given, "model_type": family,
      "tie_word_embeddings": False})
  return dataclasses.replace(config, dtype=dtype)


def _layer_names(ours, theirs):
  return {f"{ours}/{a}/{end}": f"{theirs}.{b}.{_ENDS[end]}"
          for a, b in _LAYER.items() for end in _ENDS}


def _own_embedding(tensors, target):
  """Returns whether a head brings an embedding for the target's tokens."""
  found = tensors.get("embed_tokens.weight")
  return found is not None and found.shape[0] == target.vocab_size


def _check_kept(path, kept, target):
  if any(i not in range(target.num_layers) for i in kept):
    raise ValueError(f"'{path}' reads the outputs of layers {kept}: the target "
                     f"has the layers 0 to {target.num_layers - 1}.")


def _read(path, tensors, name, leaf):
  """Returns a tensor as a parameter."""
  if name not in tensors:
    raise ValueError(f"'{path}': tensor {name} is missing.")
  found = tensors[name]
  # Vectors are columns here.
  shape = leaf.shape[:1] if leaf.shape[1:] == (1,) else leaf.shape
  if found.refusal or found.shape != shape:
    raise ValueError(f"'{path}': tensor {name} "
                     f"{found.refusal or f'has shape {found.shape}'}: {shape} "
                     "fits the target and the config of the head.")
  return jnp.asarray(found.read().reshape(leaf.shape), leaf.dtype)


def _check_rest(path, tensors, used):
  rest = [name for name in sorted(tensors.keys() - used)
          if not name.startswith(_UNUSED)]
  if rest:
    raise ValueError(f"'{path}': tensor {rest[0]} is not one of a head of "
                     "this kind.")


def _draft_tokens(path, offsets, target):
  """Returns the token of each entry of a draft vocabulary."""
  tokens = np.arange(len(offsets)) + np.asarray(offsets)
  if tokens.min() < 0 or tokens.max() >= target.vocab_size or (
      len(set(tokens)) < len(tokens)):
    raise ValueError(f"'{path}': tensor d2t leads to tokens from {tokens.min()}"
                     f" to {tokens.max()}: different ones of the target's 0 to "
                     f"{target.vocab_size - 1} are needed.")
  return jnp.asarray(tokens, jnp.int32)
