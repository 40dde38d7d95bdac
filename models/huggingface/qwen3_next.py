"""The fields of `config.json` of Qwen3-Next and Qwen3.5.

Gated delta layers, some attention with an output gate, Gemma's norms; experts
in Qwen3-Next only. Of Qwen3.5 the text model is read, without images.
"""

from models.huggingface import config_fields
from models.huggingface import layer_types
from models.huggingface import llama
from models.huggingface import rope as hf_rope

_take = config_fields.take
NEXT, DENSE = "qwen3_next", "qwen3_5_text"
# The same as `DENSE`, with images.
WHOLE = "qwen3_5"
_SIZES = {"linear_key_heads": "linear_num_key_heads",
          "linear_value_heads": "linear_num_value_heads",
          "linear_key_dim": "linear_key_head_dim",
          "linear_value_dim": "linear_value_head_dim",
          "linear_conv": "linear_conv_kernel_dim"}
# Where no field says.
_EVERY, _PART = 4, 0.25
_THREE_AXES = ("mrope_section", "mrope_interleaved")
IMAGES = frozenset("""
    image_token_id video_token_id vision_config vision_end_token_id
    vision_start_token_id
    """.split())
_DELTA = {"head_dim": 256, "linear_num_key_heads": 16,
          "linear_num_value_heads": 32, "linear_key_head_dim": 128,
          "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
          "max_position_embeddings": 32768}
DEFAULTS = {
    NEXT: {**_DELTA, "num_key_value_heads": 2, "num_experts_per_tok": 10},
    DENSE: {**_DELTA, "num_key_value_heads": 4}}
# Tensors that are not called as Llama's.
NAMES = {
    "attention/gate": "self_attn.q_proj",
    **{f"delta/{name}": "linear_attn.in_proj_qkvz"
       for name in ("query", "key", "value", "gate")},
    **{f"delta/{name}": "linear_attn.in_proj_ba" for name in ("rate", "decay")},
    "delta": "linear_attn",
    "delta/norm": "linear_attn.norm", "delta/out": "linear_attn.out_proj"}
NAMES_3_5 = {
    **NAMES, **{f"delta/{name}": "linear_attn.in_proj_qkv"
                for name in ("query", "key", "value")},
    "delta/gate": "linear_attn.in_proj_z",
    "delta/rate": "linear_attn.in_proj_b",
    "delta/decay": "linear_attn.in_proj_a"}
# Parameters that other families lack, by our names.
KINDS = {"A_log": "A_log", "dt_bias": "dt_bias",
         **{f"{name}_conv": "conv1d.weight"
            for name in ("query", "key", "value")}}


def parse(fields, family, common):
  """Reads what these families have; see `llama.parse`."""
  rope, part = _rope(fields, common["max_length"])
  config_fields.take_one_of(fields, "attn_output_gate", family, (True,))
  return {
      "num_kv_heads": _take(fields, "num_key_value_heads"),
      "head_dim": _take(fields, "head_dim"), "norm": "rms_plus_one",
      "qk_norm": True, "attention_gate": True, "rope_part": part,
      **config_fields.attention_and_norms(fields),
      "full_every": _every(fields, family, common["num_layers"]),
      **{ours: _take(fields, theirs) for ours, theirs in _SIZES.items()},
      **_feed_forward(fields, family), **rope}


def own_fields(config):
  """Returns what `parse` reads of an architecture, as far as they go."""
  own = {**config_fields.own_attention_and_norms(config), "hidden_act": "silu",
         "partial_rotary_factor": config.rope_part,
         "layer_types": layer_types.linear(config.num_layers,
                                           config.full_every),
         **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
         **hf_rope.own_fields(config)}
  if config.family == DENSE:
    return {**own, "intermediate_size": config.hidden_dim}
  return {**own, "moe_intermediate_size": config.hidden_dim,
          "shared_expert_intermediate_size": config.shared_dim,
          "num_experts": config.num_experts,
          "num_experts_per_tok": config.experts_per_token,
          "norm_topk_prob": config.normalize_experts,
          "decoder_sparse_step": 1, "mlp_only_layers": []}


def _rope(fields, max_length):
  """Reads the rotary embedding, and the part of the channels it rotates."""
  part = _take(fields, "partial_rotary_factor", _PART)
  for name in ("rope_scaling", "rope_parameters"):
    rope = dict(_take(fields, name, {}))
    # Transformers 5 has it there.
    part = _take(rope, "partial_rotary_factor", part)
    for axes in _THREE_AXES:
      rope.pop(axes, None)
    fields[name] = rope
  return hf_rope.parse(fields, max_length, part=part), part


def _every(fields, family, layers):
  """Reads which layers have attention: every n-th."""
  every = _take(fields, "full_attention_interval", _EVERY)
  types = _take(fields, "layer_types", None) or layer_types.linear(layers,
                                                                   every)
  every = types.index(layer_types.FULL) + 1 if layer_types.FULL in types else 0
  if types != layer_types.linear(layers, every) or every == 1:
    raise ValueError(f"layer_types={types!r} of {family}: {layers} are needed, "
                     f"of which every n-th is {layer_types.FULL} and the "
                     f"others are {layer_types.LINEAR}.")
  return every


def _feed_forward(fields, family):
  """Reads the width of the feed-forward layer, and what concerns experts."""
  if family == DENSE:
    return {"hidden_dim": _take(fields, "intermediate_size")}
  llama.take_dense_layers(fields, family)
  return {"hidden_dim": _take(fields, "moe_intermediate_size"),
          "shared_dim": _take(fields, "shared_expert_intermediate_size"),
          "num_experts": _take(fields, "num_experts"),
          "experts_per_token": _take(fields, "num_experts_per_tok"),
          "normalize_experts": _take(fields, "norm_topk_prob", True)}


def joined(config):
  """Returns tensors with several parameters, see `tensor_names`."""
  heads, keys = config.linear_key_heads, config.linear_key_dim
  values = config.linear_value_heads // heads * config.linear_value_dim
  sizes = {"query": keys, "key": keys, "value": values}
  of_all = [("attention", {"query": 1, "gate": 1}, config.num_heads),
            ("delta", {f"{name}_conv": x for name, x in sizes.items()}, 1)]
  return of_all + ([("delta", {**sizes, "gate": values}, heads),
                    ("delta", {"rate": 1, "decay": 1}, heads)]
                   if config.num_experts else [("delta", sizes, 1)])
