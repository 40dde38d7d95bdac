"""Names and layouts of tensors in Hugging Face's files.

Matrices are the same on both sides, except: GPT-2 transposes them and joins
query, key and value; GPT-NeoX joins these head by head. A column has one axis
less. OPT's table of positions has two more rows. Each expert has its own
tensors. Phi-3 is a Llama that joins query, key and value, and both input
matrices of the feed-forward layer.
"""

import re
from typing import NamedTuple

import numpy as np

from models.heads.parts import formats
from models.heads.parts import mtp_tensors
from models.huggingface import deepseek
from models.huggingface import granite_hybrid
from models.huggingface import llama
from models.huggingface import masked
from models.huggingface import qwen3_next
from models.transformer import layer_stack
from models.transformer import moe

_HEAD = "lm_head.weight"
_LLAMA = {
    "embedding": "model.embed_tokens.weight",
    "head": _HEAD,
    "norm": "model.norm",
    "layer": "model.layers.{}",
    **formats.LLAMA}
_GEMMA_2 = {
    **_LLAMA,
    "attention_out_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_out_norm": "post_feedforward_layernorm"}
_STARCODER_2 = {
    **_LLAMA, "feed_forward/up": "mlp.c_fc", "feed_forward/down": "mlp.c_proj"}
_QKV = [f"attention/{name}" for name in ("query", "key", "value")]
_NEOX = {
    **_LLAMA, **dict.fromkeys(_QKV, "attention.query_key_value"),
    "embedding": "gpt_neox.embed_in.weight",
    "head": "embed_out.weight",
    "norm": "gpt_neox.final_layer_norm",
    "layer": "gpt_neox.layers.{}",
    "attention/out": "attention.dense",
    "feed_forward/up": "mlp.dense_h_to_4h",
    "feed_forward/down": "mlp.dense_4h_to_h"}
_OPT = {
    **_LLAMA,
    "embedding": "model.decoder.embed_tokens.weight",
    "positions": "model.decoder.embed_positions.weight",
    "project_in": "model.decoder.project_in",
    "project_out": "model.decoder.project_out",
    "norm": "model.decoder.final_layer_norm",
    "layer": "model.decoder.layers.{}",
    "attention_norm": "self_attn_layer_norm",
    "attention/out": "self_attn.out_proj",
    "feed_forward_norm": "final_layer_norm",
    "feed_forward/up": "fc1",
    "feed_forward/down": "fc2"}
_GPT_2 = {
    **_LLAMA, **dict.fromkeys(_QKV, "attn.c_attn"),
    "embedding": "transformer.wte.weight",
    "positions": "transformer.wpe.weight",
    "norm": "transformer.ln_f",
    "layer": "transformer.h.{}",
    "attention_norm": "ln_1",
    "attention/out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward/up": "mlp.c_fc",
    "feed_forward/down": "mlp.c_proj"}
_TABLES = {
    **dict.fromkeys(deepseek.FAMILIES, _LLAMA),
    "gemma": _LLAMA, "gemma2": _GEMMA_2, "gemma3_text": _GEMMA_2, "opt": _OPT,
    "gpt2": _GPT_2, "gpt_neox": _NEOX, "starcoder2": _STARCODER_2,
    qwen3_next.NEXT: {**_LLAMA, **llama.EXPERT_NAMES, **qwen3_next.NAMES},
    qwen3_next.DENSE: {**_LLAMA, **qwen3_next.NAMES_3_5},
    granite_hybrid.FAMILY: {**_LLAMA, **granite_hybrid.NAMES},
    **{name: {**_LLAMA, **family.names}
       for name, family in llama.FAMILIES.items()}}
_KINDS = {"kernel": "weight", "scale": "weight", "bias": "bias",
          **qwen3_next.KINDS, **granite_hybrid.KINDS,
          "correction": deepseek.CORRECTION}
_OPT_POSITIONS = 2
# Frequencies of the rotary embedding and causal masks, which old files hold.
_ROTARY = r"rotary_emb\.inv_freq$"
_HARMLESS = {"gpt2": r"\.attn\.(masked_)?bias$",
             "gpt_neox": r"\.attention\.(masked_bias|bias|" + _ROTARY + ")",
             deepseek.V3: r"\.self_attn\.indexer\.|" + _ROTARY}
# Of models with images: what is not the text's, and what is.
_IMAGES = r"(model\.)?(vision_tower|multi_modal_projector|visual)\."
_TEXT = r"^(language_model\.|(model\.)language_model\.)"
# By family, `config -> list` of tensors with several parameters: their module,
# the parameters' relative sizes by name, and the groups of a `TensorSlice`.
_FUSED = dict.fromkeys(("query", "key", "value"), 1)
_JOINED = {"gpt2": lambda _: [("attention", _FUSED, 1)],
           "gpt_neox": lambda config: [("attention", _FUSED, config.num_heads)],
           "phi3": llama.joined, granite_hybrid.FAMILY: granite_hybrid.joined,
           qwen3_next.NEXT: qwen3_next.joined,
           qwen3_next.DENSE: qwen3_next.joined}


class TensorSlice(NamedTuple):
  """The part of a tensor that is a parameter without the axes of `stacked`. A
  tensor has groups of heads, each of which has all parts, of relative sizes;
  `skipped` rows in front belong to none. In a transposed one inputs come
  first."""
  source: str
  part: int = 0
  sizes: tuple[int, ...] = (1,)
  groups: int = 1
  skipped: int = 0
  transposed: bool = False

  def shape(self, shape):
    """Returns the tensor's shape, from the parameter's."""
    rows = sum(self.sizes) * shape[0] // self.sizes[self.part]
    shape = (self.skipped + rows, *shape[1:])
    return shape[::-1] if self.transposed else shape

  def read(self, x):
    """Returns the parameter, from the tensor."""
    x = x.T if self.transposed and x.ndim > 1 else x
    rows = x[self.skipped:].reshape(self.groups, sum(self.sizes), -1,
                                    *x.shape[1:])
    start = sum(self.sizes[:self.part])
    return rows[:, start:start + self.sizes[self.part]].reshape(
        -1, *x.shape[1:])

  def write(self, parts):
    """Returns the tensor, from all parameters that are parts of it."""
    x = np.concatenate(
        [x.reshape(self.groups, -1, *x.shape[1:]) for x in parts], 1)
    x = x.reshape(-1, *x.shape[2:])
    if self.skipped:
      x = np.concatenate([np.zeros_like(x[:self.skipped]), x])
    return x.T if self.transposed and x.ndim > 1 else x


def stacked(config, name) -> tuple[int, ...]:
  """Returns sizes of the first axes of a parameter: scanned layers, experts.
  Each of their indices has a tensor of its own."""
  layers = _scanned(config) if name.startswith("layers/layer/") else []
  of_experts = moe.is_kernel(name) and _of_layer(config, name).num_experts
  return (*([len(layers)] if layers else []),
          *([config.num_experts] if of_experts else []))


def _scanned(config):
  """Returns the numbers of the layers that are scanned where some are."""
  return range(config.dense_layers, config.num_layers)


def _of_layer(config, name):
  """Returns the architecture of the layer that has a parameter."""
  number = layer_stack.layer_number(name)
  return config.of_layer(config.num_layers if number is None else number)


def slices(config, name) -> list[TensorSlice]:
  """Returns the slices of tensors that make a parameter. There is one for each
  index of `stacked`, whose last axis is the fastest."""
  family = config.family
  table = _TABLES[family]
  *path, leaf = name.split("/")
  if not path:
    skipped = _OPT_POSITIONS if (family, leaf) == ("opt", "positions") else 0
    return [TensorSlice(table[leaf], skipped=skipped)]
  piece = TensorSlice("", transposed=family == "gpt2" and leaf == "kernel")
  if path[0] != "layers":
    return [piece._replace(source=f"{table['/'.join(path)]}.{_KINDS[leaf]}")]
  module, parameter = [*path, leaf][2:4]
  for other, sizes, groups in _JOINED.get(family, lambda _: ())(config):
    if module == other and parameter in sizes:
      piece = piece._replace(part=list(sizes).index(parameter),
                             sizes=tuple(sizes.values()), groups=groups)
  layers = (_scanned(config) if path[1] == "layer"
            else [int(path[1].removeprefix("layer_"))])
  inner = "/".join(path[2:])
  if config.latent_dim:
    table = table | deepseek.names(_of_layer(config, name))
  inner = f"{table[inner]}.{_KINDS[leaf]}"
  if config.latent_dim and path[-1] in ("key", "value"):
    piece = deepseek.HeadRows("", int(path[-1] == "value"),
                              (config.plain_dim, config.value_dim),
                              config.latent_dim)
  numbers = range(config.num_experts) if "{}" in inner else [0]
  return [piece._replace(
      source=f"{table['layer'].format(i)}.{inner.format(number)}")
          for i in layers for number in numbers]


def with_base(config, tensors):
  """Returns tensors under the names that a whole model of text has. A model
  that was saved without its head has names without their first part; one with
  images has other names."""
  family, tensors = config.family, masked.renamed(tensors)
  if family in ("gemma3_text", qwen3_next.DENSE):
    tensors = {re.sub(_TEXT, r"\2", name): x for name, x in tensors.items()
               if not re.match(_IMAGES, name)}
  table = _TABLES[family]
  base = table["embedding"].partition(".")[0] + "."
  # Transformers 5 calls all heads the same.
  head = {table["head"]: tensors[name] for name in (_HEAD, table["head"])
          if name in tensors}
  rest = {name: x for name, x in tensors.items()
          if name not in (_HEAD, table["head"])}
  if not any(name.startswith(base) for name in rest):
    rest = {base + name: x for name, x in rest.items()}
  return {**rest, **head}


def check_rest(config, tensors, used):
  """Raises a ValueError that names a tensor if one would be ignored. Next-token
  modules are drafters, which `heads` reads."""
  family = config.family
  table = _TABLES[family]
  embedding = table["embedding"]
  for name in sorted(set(tensors) - used - mtp_tensors.names(tensors)):
    if name == table["head"]:
      # Some files hold the tied head twice.
      tied = tensors[embedding]
      if (tensors[name].refusal or tensors[name].shape != tied.shape
          or not np.array_equal(tensors[name].read(), tied.read())):
        raise ValueError(
            f"'{tensors[name].path}': tensor {name} differs from {embedding}, "
            "but tie_word_embeddings is true.")
    elif not re.search(_HARMLESS.get(family, _ROTARY), name):
      raise ValueError(f"'{tensors[name].path}': tensor {name} is not one of "
                       "this architecture.")
