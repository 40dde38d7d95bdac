"""Fields and tensors of the layers of published heads: those of a Llama."""

import dataclasses

from models.huggingface import config as hf_config

# Of a config, what describes the layers of a head as those of a Llama.
_FIELDS = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "intermediate_size", "rms_norm_eps", "rope_theta", "rope_scaling",
    "rope_parameters", "max_position_embeddings", "hidden_act",
    "attention_bias", "mlp_bias", "vocab_size", "torch_dtype", "dtype",
    "num_hidden_layers")
_NAMES = {
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
_ENDS = {"kernel": "weight", "scale": "weight", "bias": "bias"}


def config(path, found: dict, dtype: str, family: str = "llama"):
  """Returns the architecture of the layers of a head.

  Args:
    path: folder of the head.
    found: fields of its `config.json`.
    dtype: of its parameters.
    family: whose layers they are.

  Returns:
    A `transformer.Config`.

  Raises:
    ValueError: naming a field that is wrong.
  """
  given = {name: found[name] for name in _FIELDS if name in found}
  parsed = hf_config.parse(path / hf_config.FILE, {
      "num_hidden_layers": 1, **given, "model_type": family,
      "tie_word_embeddings": False})
  return dataclasses.replace(parsed, dtype=dtype)


def fields(config, dtype: str) -> dict:
  """Returns the fields of a `config.json` for layers.

  Args:
    config: their `transformer.Config`.
    dtype: of the tensors.
  """
  return {"hidden_size": config.dim, "num_attention_heads": config.num_heads,
          "num_key_value_heads": config.num_kv_heads,
          "head_dim": config.head_dim, "intermediate_size": config.hidden_dim,
          "rms_norm_eps": config.norm_eps, "rope_theta": config.rope_theta,
          "max_position_embeddings": config.max_length, "hidden_act": "silu",
          "num_hidden_layers": config.num_layers,
          "vocab_size": config.vocab_size, "torch_dtype": dtype}


def names(ours: str, theirs: str) -> dict[str, str]:
  """Returns the tensor of each parameter of a layer.

  Args:
    ours: name of the layer among parameters.
    theirs: its name among tensors.
  """
  return {f"{ours}/{a}/{end}": f"{theirs}.{b}.{_ENDS[end]}"
          for a, b in _NAMES.items() for end in _ENDS}
