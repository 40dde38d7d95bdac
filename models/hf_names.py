"""What the tensors of Hugging Face's files are called, and how they lie there.

The names follow from those of the parameters: a table a family. Matrices are
the same on both sides, but GPT-2 has them transposed and those of query, key
and value in one tensor; columns have one axis there; OPT's table of positions
has two rows more, for positions that its tokenizer once needed.
"""

import re
from typing import NamedTuple

import numpy as np

from models import hf_config

_HEAD = "lm_head.weight"
_LLAMA = {
    "embedding": "model.embed_tokens.weight",
    "head": _HEAD,
    "norm": "model.norm",
    "layer": "model.layers.{}",
    "attention_norm": "input_layernorm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.o_proj",
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
    "feed_forward_norm": "post_attention_layernorm",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/up": "mlp.up_proj",
    "feed_forward/down": "mlp.down_proj"}
_GEMMA_2 = {
    **_LLAMA,
    "attention_out_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_out_norm": "post_feedforward_layernorm"}
_OPT = {
    "embedding": "model.decoder.embed_tokens.weight",
    "positions": "model.decoder.embed_positions.weight",
    "project_in": "model.decoder.project_in",
    "project_out": "model.decoder.project_out",
    "head": _HEAD,
    "norm": "model.decoder.final_layer_norm",
    "layer": "model.decoder.layers.{}",
    "attention_norm": "self_attn_layer_norm",
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.out_proj",
    "feed_forward_norm": "final_layer_norm",
    "feed_forward/up": "fc1",
    "feed_forward/down": "fc2"}
_GPT_2 = {
    "embedding": "transformer.wte.weight",
    "positions": "transformer.wpe.weight",
    "head": _HEAD,
    "norm": "transformer.ln_f",
    "layer": "transformer.h.{}",
    "attention_norm": "ln_1",
    "attention/query": "attn.c_attn",
    "attention/key": "attn.c_attn",
    "attention/value": "attn.c_attn",
    "attention/out": "attn.c_proj",
    "feed_forward_norm": "ln_2",
    "feed_forward/up": "mlp.c_fc",
    "feed_forward/down": "mlp.c_proj"}
_TABLES = {"gemma2": _GEMMA_2, "gemma3_text": _GEMMA_2, "opt": _OPT,
           "gpt2": _GPT_2}
_KINDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}
# Parts of one tensor, in this order.
_FUSED = ("query", "key", "value")
_OPT_POSITIONS = 2
# Frequencies of the rotary embedding and causal masks, which old files hold.
_HARMLESS = {"gpt2": r"\.attn\.(masked_)?bias$"}
_ROTARY = r"rotary_emb\.inv_freq$"
# Of models with images: what is not the text's, and what is.
_IMAGES = r"(model\.)?(vision_tower|multi_modal_projector)\."
_TEXT = r"^(language_model\.|(model\.)language_model\.)"


class Place(NamedTuple):
  """Where a parameter without layer axis lies.

  Attributes:
    source: the tensor's name.
    part: which of equal parts of the tensor it is.
    parts: how many there are.
    skipped: rows in front that belong to no part.
    transposed: whether the inputs of a matrix come first.
    column: whether the parameter has an axis more, of one element.
  """
  source: str
  part: int = 0
  parts: int = 1
  skipped: int = 0
  transposed: bool = False
  column: bool = False

  def shape(self, shape):
    """The tensor's shape, from that of the parameter."""
    shape = (self.skipped + self.parts * shape[0], *shape[1:])
    if self.column:
      return shape[:1]
    return shape[::-1] if self.transposed else shape

  def read(self, x):
    """The parameter, from the tensor; the axis of a column is missing."""
    x = x.T if self.transposed and x.ndim > 1 else x
    size = (len(x) - self.skipped) // self.parts
    first = self.skipped + self.part * size
    return x[first:first + size]

  def write(self, parts):
    """The tensor, from all parameters that are parts of it."""
    parts = [x[:, 0] if self.column else x for x in parts]
    if self.skipped:
      empty = np.zeros((self.skipped, *parts[0].shape[1:]), parts[0].dtype)
      parts.insert(0, empty)
    x = np.concatenate(parts) if len(parts) > 1 else parts[0]
    return x.T if self.transposed and x.ndim > 1 else x


def places(config, name) -> list[Place]:
  """Where a parameter lies: one place, or one a layer of scanned layers.

  Args:
    config: a `transformer.Config`.
    name: of one of its parameters, as `transformer.param_name` gives it.

  Returns:
    Its places.
  """
  family = hf_config.family(config)
  table = _TABLES.get(family, _LLAMA)
  *path, kind = name.split("/")
  if not path:
    skipped = _OPT_POSITIONS if (family, kind) == ("opt", "positions") else 0
    return [Place(table[kind], skipped=skipped)]
  place = Place("", column=kind != "kernel",
                transposed=family == "gpt2" and kind == "kernel")
  if path[0] != "layers":
    return [place._replace(source=f"{table['/'.join(path)]}.{_KINDS[kind]}")]
  if family == "gpt2" and path[-1] in _FUSED:
    place = place._replace(part=_FUSED.index(path[-1]), parts=len(_FUSED))
  layers = (range(config.num_layers) if config.scan_layers
            else [int(path[1].removeprefix("layer_"))])
  inner = f"{table['/'.join(path[2:])]}.{_KINDS[kind]}"
  return [place._replace(source=f"{table['layer'].format(i)}.{inner}")
          for i in layers]


def with_base(config, found):
  """Tensors under the names that a whole model of text has.

  Args:
    config: a `transformer.Config`.
    found: dict by the names of a file. A model that was saved without its head
      has names without their first part; one with images has other names.

  Returns:
    dict by the names of `places`, and of what belongs to no parameter.
  """
  family = hf_config.family(config)
  if family == "gemma3_text":
    found = {re.sub(_TEXT, r"\2", name): x for name, x in found.items()
             if not re.match(_IMAGES, name)}
  base = _TABLES.get(family, _LLAMA)["embedding"].partition(".")[0] + "."
  if any(name.startswith(base) for name in found):
    return found
  return {name if name == _HEAD else base + name: x
          for name, x in found.items()}


def check_rest(config, found, used):
  """Raises an error if a tensor is left that would be ignored.

  Args:
    config: a `transformer.Config`.
    found: dict of `hf_files.Tensor`.
    used: set of the names of those that belong to a parameter.

  Raises:
    ValueError: naming the tensor.
  """
  family = hf_config.family(config)
  embedding = _TABLES.get(family, _LLAMA)["embedding"]
  for name in sorted(set(found) - used):
    if name == _HEAD:
      # Some files hold the tied head twice.
      tied = found[embedding]
      if (found[name].refusal or found[name].shape != tied.shape
          or not np.array_equal(found[name].read(), tied.read())):
        raise ValueError(
            f"'{found[name].path}': tensor {name} differs from {embedding}, "
            "but tie_word_embeddings is true.")
    elif not re.search(_HARMLESS.get(family, _ROTARY), name):
      raise ValueError(f"'{found[name].path}': tensor {name} is not one of "
                       "this architecture.")
