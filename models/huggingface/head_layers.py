"""Architectures of the layers of published heads, which are a Llama's."""

import dataclasses

from models.huggingface import config as hf_config

# Fields of a config that describe the layers of a head as a Llama's.
_FIELDS = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "rms_norm_eps", "rope_theta", "rope_scaling",
    "rope_parameters", "max_position_embeddings", "hidden_act",
    "attention_bias", "mlp_bias", "vocab_size", "torch_dtype", "dtype",
    "num_hidden_layers")
# Biases that a head has if it has their tensors, whatever its config says.
_BIASES = {"qkv_bias": "self_attn.q_proj", "out_bias": "self_attn.o_proj",
           "feed_forward_bias": "mlp.gate_proj"}


def config(path, fields: dict, dtype: str, target, tensors: dict,
           prefix: str = "layers.0", family: str = "", windows: bool = False):
  """Returns the architecture of a head's layers: of `family`, or where that is
  "", of Qwen3 or Llama by `tensors`; `prefix` is the first layer's.
  Positions are the target's: configs name the training length, often 2,048.
  With `windows` all may have one. Raises ValueError for a wrong field, or other
  layers with a window."""
  window = _window(path, fields, windows)
  given = {name: fields[name] for name in _FIELDS if name in fields}
  has_norms = f"{prefix}.self_attn.q_norm.weight" in tensors
  parsed = hf_config.parse(path / hf_config.FILE, {
      "num_hidden_layers": 1, "max_position_embeddings": target.max_length,
      # Heads name no family: without these fields each is a Llama.
      **({} if family else {"num_key_value_heads": None, "head_dim": None}),
      **given, "model_type": family or ("qwen3" if has_norms else "llama"),
      "tie_word_embeddings": False})
  length = target.max_length and max(target.max_length, parsed.max_length)
  return dataclasses.replace(
      parsed, dtype=dtype, max_length=length, window=window,
      **{name: f"{prefix}.{theirs}.bias" in tensors
         for name, theirs in _BIASES.items()})


def _window(path, fields, allowed):
  """Returns the window of all layers, 0 if they see the whole text."""
  types = fields.get("layer_types")
  if allowed and types and set(types) == {"sliding_attention"}:
    return fields.get("sliding_window", 0)
  windows = (set(types) != {"full_attention"} if types else
             fields.get("use_sliding_window") and fields.get("sliding_window"))
  if windows:
    name = "layer_types" if types else "use_sliding_window"
    raise ValueError(f"'{path}': {name}={fields[name]!r} is not supported for "
                     "a head: layers with full attention are.")
  return 0
