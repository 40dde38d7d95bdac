"""Next-token modules (MTP) among the tensors of a checkpoint.

    DeepSeek-V3, GLM-4.5  model.layers.N.{enorm,hnorm,eh_proj,shared_head}, and
                          a layer, after the N layers of the target
    Qwen3-Next, Qwen3.5   mtp.{pre_fc_norm_embedding,pre_fc_norm_hidden,fc,norm}
                          and mtp.layers.0
    MiMo                  model.mtp_layers.0.{token_layernorm,hidden_layernorm,
                          input_proj,final_layernorm}, and a layer

Here all have the names of Qwen3-Next. Names were read in
sgl-project/sglang@d737979c (glm4_moe_nextn.py), vllm-project/vllm@ffdc9857
(qwen3_next_mtp.py) and @98debc24 (mimo_mtp.py).
"""

import re
from typing import NamedTuple

import numpy as np

from models.heads.parts import formats

PREFIX = "mtp."
LAYER = "mtp.layers.0"
NORMS = {"layer/embed_norm": "mtp.pre_fc_norm_embedding",
         "layer/feature_norm": "mtp.pre_fc_norm_hidden",
         "layer/norm": "mtp.norm"}
PROJECTION = "mtp.fc.weight"
_NUMBERED = r"model\.layers\.(\d+)\."
_MIMO = "model.mtp_layers."
_DEEPSEEK_NAMES = {
    "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden",
    "eh_proj": "fc", "shared_head.norm": "norm"}
_MIMO_NAMES = {
    "token_layernorm": "pre_fc_norm_embedding",
    "hidden_layernorm": "pre_fc_norm_hidden", "input_proj": "fc",
    "final_layernorm": "norm"}
# Copies of what the target has.
_COPIES = ("shared_head.head.weight", "embed_tokens.weight")


class Module(NamedTuple):
  """The first module of a checkpoint."""
  tensors: dict  # Dict by the names of Qwen3-Next
  is_mimo: bool  # Whether it computes as MiMo's modules do


def find(tensors) -> Module | None:
  """Returns the first module among tensors, a dict; None if there is none. It
  drafts all tokens, as it does in SGLang: others are for the second token and
  later ones."""
  if PROJECTION in tensors:
    ours = (PREFIX, formats.OFFSETS)
    return Module({name: x for name, x in tensors.items()
                   if name.startswith(ours)}, False)
  if f"{_MIMO}0.input_proj.weight" in tensors:
    renamed = _renamed(tensors, f"{_MIMO}0.", _MIMO_NAMES)
    projection = renamed[PROJECTION]  # Its inputs begin with the other half.
    renamed[PROJECTION] = projection._replace(read=lambda: np.roll(
        projection.read(), projection.shape[1] // 2, axis=1))
    return Module(renamed, True)
  layers = _layers(tensors)
  return Module(
      _renamed(tensors, f"model.layers.{layers[0]}.", _DEEPSEEK_NAMES),
      False) if layers else None


def names(tensors) -> set[str]:
  """Returns the names of all tensors that belong to modules."""
  prefixes = PREFIX, _MIMO, *(f"model.layers.{i}." for i in _layers(tensors))
  return {name for name in tensors if name.startswith(prefixes)}


def _layers(tensors):
  """Returns the numbers of the layers that are modules, as in DeepSeek-V3."""
  matches = (re.fullmatch(_NUMBERED + r"eh_proj\.weight", x) for x in tensors)
  return sorted(int(match[1]) for match in matches if match)


def _renamed(tensors, prefix, table):
  renamed = {}
  for name, x in tensors.items():
    rest = name.removeprefix(prefix)
    if rest == name or rest in _COPIES:
      continue
    part, _, end = rest.rpartition(".")
    renamed[f"{PREFIX}{table[part]}.{end}" if part in table
            else f"{LAYER}.{rest}"] = x
  return renamed
