"""What a folder of a published head holds, by its config and tensors.

Layers that a head reads are counted in three ways. Where speculators and vLLM
name `*aux_hidden_state_layer_ids` at the top of a config, i is what goes into
layer i, the output of layer i - 1; in the `eagle_config` of SpecForge and
TensorRT-LLM, and in `target_layer_ids`, it is the output of layer i
(sgl-project/sglang, srt/models/llama.py, set_eagle3_layers_to_capture).
"""

import dataclasses
import re
from typing import NamedTuple

from models.folders import json_files
from models.heads import block
from models.heads import eagle
from models.heads import medusa
from models.heads import mtp
from models.huggingface import head_layers
from models.huggingface import regressive_heads

EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM",
          "Eagle3Speculator", "Eagle3DraftModel", "Qwen3Eagle3Model")
# Of a block, those whose places predict their own token; and the next one.
DFLASH = ("DFlashDraftModel", "DFlashSpeculator")
DSPARK = ("Qwen3DSparkModel", "DSparkDraftModel", "DSparkSpeculator")
MTP = ("Qwen3NextMTP", "DeepSeekMTPModel", "Glm4MoeMTPModel", "MiMoMTPModel")
SPECULATORS = "speculators_model_type"
OFFSETS = "d2t"
_KNOWN = {*EAGLE3, *DFLASH, *DSPARK, *MTP}
_LAYER = "transformer_layer_config"
_IDS, _BLOCK_IDS = ("eagle_aux_hidden_state_layer_ids",
                    "aux_hidden_state_layer_ids"), "target_layer_ids"
# What changes the computation, and is not computed here unless it is so.
_ONLY_EAGLE3 = dict.fromkeys(
    ("norm_before_fc", "fc_norm", "norm_output", "input_norm"), False)
_ONLY_BLOCK = {"markov_head_type": "vanilla", "projector_type": "dflash"}


class Kind(NamedTuple):
  """What a folder holds: module, architecture, and layers that it reads."""
  module: object
  config: object
  kept: tuple[int, ...]


def architecture(fields: dict) -> str | None:
  """Returns the class that a config names."""
  names = fields.get("architectures")
  name = names[0] if isinstance(names, list) and names else None
  return name if isinstance(name, str) else None


def is_named(fields: dict) -> bool:
  """Returns whether a config says by itself that it is one of a head."""
  return bool(architecture(fields) in _KNOWN or SPECULATORS in fields
              or "medusa_num_heads" in fields or regressive_heads.kind(fields))


def of_folder(path, fields: dict, tensors: dict, target, dtype: str) -> Kind:
  """Returns what is in a folder, which holds no module of a target.

  Args:
    path: of the folder.
    fields: of its `config.json`.
    tensors: dict of `tensor_files.Tensor`.
    target: the `transformer.Config` of the target.
    dtype: of parameters and activations.

  Raises:
    ValueError: naming what is wrong, not supported, or does not fit the target.
  """
  module = regressive_heads.kind(fields)
  if module:
    return Kind(module, regressive_heads.FORMATS[module].config(
        path, fields, tensors, target, dtype), (target.num_layers - 1,))
  if "medusa_num_heads" in fields or any(
      name.startswith("0.0.") for name in tensors):
    return _medusa(path, tensors, target.num_layers - 1)
  if architecture(fields) in DFLASH + DSPARK:
    return _block(path, fields, tensors, target, dtype)
  for prefix in ("midlayer", "layers.0"):
    if f"{prefix}.hidden_norm.weight" in tensors:
      return _eagle3(path, fields, tensors, target, dtype, prefix)
  if "fc.weight" in tensors or "fc.fc.weight" in tensors:
    return _eagle1(path, fields, tensors, target, dtype)
  raise ValueError(f"'{path}' holds no head of a kind that is known: EAGLE, "
                   "FSPAD, Medusa, Hydra, Clover-2, Chimera, DFlash, DSpark, "
                   "JetSpec or MTP.")


def of_module(path, found, target, dtype: str) -> Kind:
  """Returns a next-token module of a target.

  Args:
    path: of the folder.
    found: of `mtp_tensors.find`.
    target: as of `of_folder`.
    dtype: see there.

  Raises:
    ValueError: for a target with layers that such a module cannot have here.
  """
  unlike = [name for name in ("num_experts", "sandwich_norm", "reordered_norm",
                              "parallel") if getattr(target, name)]
  if unlike or target.norm == "layer":
    raise ValueError(f"'{path}': a next-token module with a layer like those "
                     f"of the target, {(unlike or ['norm'])[0]}="
                     f"{getattr(target, (unlike or ['norm'])[0])!r}, is not "
                     "supported; layers of Llama, Qwen2 and Qwen3 are.")
  layer = dataclasses.replace(mtp.layer_of(target), dtype=dtype)
  return Kind(mtp, mtp.Config(layer, found.is_mimo), (target.num_layers - 1,))


def _medusa(path, tensors, last):
  found = {name: re.match(r"(\d{1,3})\.(\d{1,3})\.", name)
           for name in tensors}
  other = next((name for name, match in found.items() if not match), "")
  if other or not found:
    raise ValueError(f"'{path}': tensor {json_files.shortened(other)} is not "
                     "one of Medusa, <head>.<block>.")
  heads, blocks = (max(int(match[i]) for match in found.values())
                   for i in (1, 2))
  heads += 1
  return Kind(medusa, medusa.Config(heads, blocks), (last,))


def _eagle1(path, fields, tensors, target, dtype):
  layer = head_layers.config(path, fields, dtype, target, tensors)
  sampled = "fc.fc.weight" in tensors
  down = tensors.get("layers.0.mlp.down_proj.weight")
  config = eagle.Config(
      layer, version=1, bias=f"fc{'.fc' * sampled}.bias" in tensors,
      own_embedding=_own_embedding(tensors, target), sampled_features=sampled,
      decoupled=down is not None and down.shape[:1] == (2 * layer.dim,))
  return Kind(eagle, config, (target.num_layers - 1,))


def _eagle3(path, fields, tensors, target, dtype, prefix):
  _check_only(path, fields, _ONLY_EAGLE3)
  kept = _kept(path, fields, fields.get("eagle_config", {}), target)
  return Kind(eagle, eagle.Config(
      head_layers.config(path, fields.get(_LAYER, fields), dtype, target,
                         tensors, prefix),
      draft_vocab=_draft_vocab(path, fields, tensors, target),
      shared_output=OFFSETS in tensors and "lm_head.weight" not in tensors,
      own_embedding=_own_embedding(tensors, target),
      norm_before_residual=fields.get("norm_before_residual",
                                      SPECULATORS in fields)),
              kept or eagle.taps(target))


def _block(path, fields, tensors, target, dtype):
  inner = fields.get("dflash_config", {})
  more = {**fields, **inner}
  _check_only(path, more, _ONLY_BLOCK)
  for name in ("block_size", "mask_token_id"):
    if more.get(name) is None:
      raise ValueError(f"'{path}': no field {name!r}.")
  kept = _kept(path, fields, inner, target)
  if not kept:
    raise ValueError(f"'{path}': no field {_BLOCK_IDS!r} or {_IDS[1]!r}.")
  if more["mask_token_id"] >= target.vocab_size:
    raise ValueError(f"'{path}': mask_token_id={more['mask_token_id']}: the "
                     f"target has the tokens 0 to {target.vocab_size - 1}.")
  config = head_layers.config(path, fields.get(_LAYER, fields), dtype, target,
                              tensors, family="qwen3")
  return Kind(block, block.Config(
      config, more["block_size"], more["mask_token_id"], len(kept),
      more.get("markov_rank", 0),
      from_root=more.get("sample_from_anchor", architecture(fields) in DSPARK),
      causal=more.get("causal_head", False),
      draft_vocab=_draft_vocab(path, more, tensors, target)), kept)


def _kept(path, fields, inner, target):
  """Returns the layers whose outputs a head reads; () where none are named."""
  before = next((fields[x] for x in _IDS if x in fields), ())
  after = next((x[name] for x in (inner, fields)
                for name in (_BLOCK_IDS, _IDS[0]) if name in x), ())
  kept = tuple(i - 1 for i in before) or tuple(after)
  if any(i not in range(target.num_layers) for i in kept):
    raise ValueError(f"'{path}' reads the outputs of layers {kept}: the target "
                     f"has the layers 0 to {target.num_layers - 1}.")
  return kept


def _check_only(path, fields, only):
  """Raises a ValueError for what is not computed here."""
  for name, value in only.items():
    if (fields.get(name) or value) != value:
      raise ValueError(f"'{path}': {name}={fields[name]!r} is not supported; "
                       f"{value!r} is.")


def _draft_vocab(path, fields, tensors, target):
  """Returns how many tokens can be drafted; 0 for all."""
  shape = tensors[OFFSETS].shape if OFFSETS in tensors else (0,)
  if len(shape) != 1 or OFFSETS in tensors and not shape[0]:
    raise ValueError(f"'{path}': tensor {OFFSETS} has shape {shape}: one axis "
                     "with an entry of each token that is drafted is needed.")
  given = fields.get("draft_vocab_size", shape[0])
  if given not in ((shape[0],) if shape[0] else (0, target.vocab_size)):
    raise ValueError(
        f"'{path}': draft_vocab_size={given}: the tensors are of a head that "
        f"drafts {shape[0] or target.vocab_size} tokens.")
  return shape[0]


def _own_embedding(tensors, target):
  """Returns whether a head brings an embedding for the target's tokens."""
  found = tensors.get("embed_tokens.weight")
  return found is not None and found.shape[:1] == (target.vocab_size,)
