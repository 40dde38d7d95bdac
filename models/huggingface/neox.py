"""The fields of `config.json` that GPT-NeoX and StarCoder2 have.

LayerNorm as in GPT-2, rotary positions as in Llama.
"""

from models.huggingface import config_fields
from models.huggingface import rope as hf_rope

# GELU by its tanh approximation, and without.
_GELUS = {"gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu_fast": "gelu",
          "gelu": "erf_gelu"}
_PART = 0.25
_take = config_fields.take


def parse(fields, family, common):
  """Reads what these families have; see `llama.parse`."""
  given = {"norm": "layer", "head_dim": config_fields.channels(common),
           "hidden_dim": _take(fields, "intermediate_size")}
  return given | (_neox if family == "gpt_neox" else _starcoder)(fields, common)


def own_fields(config):
  """Returns what `parse` reads of an architecture, as far as they go."""
  gelu = next((theirs for theirs, ours in _GELUS.items()
               if ours == config.feed_forward), None)
  own = {"intermediate_size": config.hidden_dim, "hidden_act": gelu}
  rope = hf_rope.own_fields(config)
  if config.family == "starcoder2":
    window = {"sliding_window": config.window} if config.window else {}
    return {**own, **rope, **window, "norm_epsilon": config.norm_eps,
            "num_key_value_heads": config.num_kv_heads, "use_bias": config.bias}
  return {**own, "rotary_emb_base": rope.pop("rope_theta"), **rope,
          "rotary_pct": config.rope_part, "layer_norm_eps": config.norm_eps,
          "use_parallel_residual": config.parallel,
          "attention_bias": config.qkv_bias}


def _neox(fields, common):
  bias = _take(fields, "attention_bias", True)
  theta = _take(fields, "rotary_emb_base", 10000.0)
  part = _take(fields, "rotary_pct", _PART)
  # Transformers 5 has it there.
  rope = _take(dict(fields), "rope_parameters", {})
  part = _take(dict(rope), "partial_rotary_factor", part)
  return {
      "num_kv_heads": common["num_heads"],
      "feed_forward": _gelu(fields, "gpt_neox", _GELUS),
      "parallel": _take(fields, "use_parallel_residual", True),
      "qkv_bias": bias, "out_bias": bias,
      "feed_forward_bias": True, "rope_part": part,
      "tie_embeddings": _take(fields, "tie_word_embeddings", False),
      "norm_eps": _take(fields, "layer_norm_eps", 1e-5),
      **hf_rope.parse(fields, common["max_length"], theta, part)}


def _starcoder(fields, common):
  rope = hf_rope.parse(fields, common["max_length"])
  window = config_fields.effective_window(
      _take(fields, "sliding_window", None),
      hf_rope.longest(rope, common["max_length"]))
  gelus = [x for x in _GELUS if _GELUS[x] == "gelu"]
  return {
      "num_kv_heads": _take(fields, "num_key_value_heads", 2),
      "feed_forward": _gelu(fields, "starcoder2", gelus),
      "bias": _take(fields, "use_bias", True),
      "tie_embeddings": _take(fields, "tie_word_embeddings", True),
      "norm_eps": _take(fields, "norm_epsilon", 1e-5),
      "window": window, **rope}


def _gelu(fields, family, allowed):
  """Reads the activation, which must be one of those allowed."""
  name = fields.get("hidden_act")
  config_fields.take_one_of(fields, "hidden_act", family, tuple(allowed))
  return _GELUS[name or tuple(allowed)[-1]]
