"""The fields of `config.json` of DeepSeek-V2 and its likes.

Latent attention, and experts after some first layers: DeepSeek-V2 and -V3, Kimi
K2, GLM-4.7-Flash, and Youtu-LLM without experts. DeepSeek-V3.2 and GLM-5 attend
to `index_topk` tokens that an indexer chooses, which is all up to that length:
the longest text here, so that the indexer is not read.
"""

import math
from typing import NamedTuple

import numpy as np

from models.huggingface import config_fields
from models.huggingface import rope as hf_rope

_take = config_fields.take
_V2, _YOUTU = "deepseek_v2", "youtu"
V3 = "deepseek_v3"
FAMILIES = {V3: "DeepseekV3ForCausalLM", _V2: "DeepseekV2ForCausalLM",
            "kimi_k2": "DeepseekV3ForCausalLM",
            "deepseek_v32": "DeepseekV32ForCausalLM",
            "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
            "glm_moe_dsa": "GlmMoeDsaForCausalLM", _YOUTU: "YoutuForCausalLM"}
_NAMES = {"attention/query_down": "self_attn.q_a_proj",
          "attention/query_norm": "self_attn.q_a_layernorm",
          "attention/latent": "self_attn.kv_a_proj_with_mqa",
          "attention/latent_norm": "self_attn.kv_a_layernorm",
          "attention/key": "self_attn.kv_b_proj",
          "attention/value": "self_attn.kv_b_proj",
          "feed_forward": "mlp", "feed_forward/router": "mlp.gate",
          **{f"feed_forward/shared/{x}": f"mlp.shared_experts.{x}_proj"
             for x in ("gate", "up", "down")}}
_EXPERTS = {f"feed_forward/{x}": f"mlp.experts.{{}}.{x}_proj"
            for x in ("gate", "up", "down")}
CORRECTION = "gate.e_score_correction_bias"
# Sizes, as `transformer.Config` calls them.
_SIZES = {"latent_dim": "kv_lora_rank", "plain_dim": "qk_nope_head_dim",
          "head_dim": "qk_rope_head_dim", "value_dim": "v_head_dim"}
# What transformers takes where a file has no such field.
DEFAULTS = {
    V3: {"max_position_embeddings": 4096, "n_group": 8, "topk_group": 4,
         "first_k_dense_replace": 3, "routed_scaling_factor": 2.5},
    _V2: {"max_position_embeddings": 2048, "topk_method": "greedy"},
    "deepseek_v32": {"index_topk": 2048},
    "glm_moe_dsa": {"index_topk": 2048}}
_DENSE = {"glm4_moe_lite": 1}
# Of other things than logits, or of the indexer; and what follows from others.
_UNUSED = ("aux_loss_alpha", "ep_size", "head_dim", "index_head_dim",
           "index_n_heads", "index_skip_topk_offset", "index_topk_freq",
           "index_topk_pattern", "indexer_rope_interleave", "indexer_types",
           "moe_router_dtype", "mtp_layer_types", "num_local_experts",
           "pad_token_id", "qk_head_dim", "seq_aux",
           "embedding_initializer_range")
# Scores that are divided by a gain of long texts are so up to a rounding.
_DIGITS = 12


def names(config):
  """Returns names of a layer's tensors that differ from a Llama's."""
  query = "self_attn.q_b_proj" if config.query_rank else "self_attn.q_proj"
  return _NAMES | {"attention/query": query} | (
      _EXPERTS if config.num_experts else {})


class HeadRows(NamedTuple):
  """Rows of each head in a tensor of its keys and values; a `TensorSlice`.
  `sizes` are rows of a head in part 0, of keys, whose parameter has them
  transposed, and in part 1; `inputs` are columns of the tensor."""
  source: str
  part: int
  sizes: tuple[int, int]
  inputs: int

  def shape(self, shape):
    """Returns the tensor's shape, from the parameter's."""
    heads = shape[0] // (self.sizes[1] if self.part else self.inputs)
    return (heads * sum(self.sizes), self.inputs)

  def read(self, x):
    """Returns the parameter, from the tensor."""
    x = np.split(x.reshape(-1, sum(self.sizes), self.inputs),
                 self.sizes[:1], axis=1)[self.part]
    x = x if self.part else x.swapaxes(1, 2)
    return x.reshape(-1, x.shape[-1])

  def write(self, parts):
    """Returns the tensor, from both parameters."""
    keys, values = parts
    x = np.concatenate(
        [keys.reshape(-1, self.inputs, self.sizes[0]).swapaxes(1, 2),
         values.reshape(-1, self.sizes[1], self.inputs)], axis=1)
    return x.reshape(-1, self.inputs)


def parse(fields, family, common):
  """Reads what these families have; see `llama.parse`."""
  config_fields.take_one_of(fields, "num_key_value_heads", family,
                            (common["num_heads"],))
  for name in ("attention_bias", "mlp_bias"):
    config_fields.take_one_of(fields, name, family, (False,))
  config_fields.take_one_of(fields, "layer_types", family, (
      ["indexed_attention"] * common["num_layers"],))
  config_fields.take_own_code(fields, family,
                              r"(configuration|modeling)_deepseek\.")
  for name in _UNUSED:
    fields.pop(name, None)
  sizes = {ours: _take(fields, theirs) for ours, theirs in _SIZES.items()}
  growth, channels = _growth(fields), sizes["plain_dim"] + sizes["head_dim"]
  rope = hf_rope.parse(fields, common["max_length"])
  longest = min(rope.get("max_length", common["max_length"]),
                _take(fields, "index_topk", hf_rope.longest(
                    rope, common["max_length"])))
  width = _take(fields, "intermediate_size")
  experts = {} if family == _YOUTU else _experts(fields, family, common)
  if experts.get("dense_layers"):
    experts["dense_dim"] = width
  return {
      # Others are written as a DeepSeek-V3, which computes the same.
      "family": family if family in (_V2, _YOUTU) else V3,
      "hidden_dim": width, **sizes, "num_kv_heads": 1,
      "query_rank": _take(fields, "q_lora_rank", 0),
      "query_scalar": 0.0 if growth == 1 else float(
          f"{channels / growth**4:.{_DIGITS}g}"),
      "tie_embeddings": _take(fields, "tie_word_embeddings", family == _YOUTU),
      "norm_eps": _take(fields, "rms_norm_eps", 1e-6),
      "rope_interleaved": _take(fields, "rope_interleave", True),
      **rope, "max_length": longest, **experts}


def own_fields(config):
  """Returns what `parse` reads of an architecture, as far as they go."""
  family = config.family
  own = {theirs: getattr(config, ours) for ours, theirs in _SIZES.items()}
  own |= {"num_key_value_heads": config.num_heads, "hidden_act": "silu",
          "q_lora_rank": config.query_rank or None,
          "intermediate_size": config.dense_dim or config.hidden_dim,
          "rms_norm_eps": config.norm_eps, **_rope_fields(config)}
  if family != _V2:
    own["rope_interleave"] = config.rope_interleaved
  if config.num_experts:
    own |= {"n_routed_experts": config.num_experts,
            "num_experts_per_tok": config.experts_per_token,
            "moe_intermediate_size": config.hidden_dim,
            "n_shared_experts": config.shared_dim // config.hidden_dim,
            "first_k_dense_replace": config.dense_layers,
            "routed_scaling_factor": config.expert_scale,
            "n_group": config.expert_groups,
            "topk_group": config.groups_per_token,
            "norm_topk_prob": config.normalize_experts}
  if family == _V2:
    own["topk_method"] = ("group_limited_greedy" if config.expert_groups > 1
                          else "greedy")
  return own


def _experts(fields, family, common):
  """Reads the mixtures, and how many layers have none."""
  is_v2 = family == _V2
  config_fields.take_one_of(fields, "scoring_func", family,
                            ("softmax" if is_v2 else "sigmoid",))
  config_fields.take_one_of(fields, "moe_layer_freq", family, (1,))
  # In transformers a DeepSeek-V2 ignores that field, in its own code it does
  # not.
  normalize = _take(fields, "norm_topk_prob", not is_v2)
  method = _take(fields, "topk_method", "noaux_tc")
  allowed = (("greedy", "group_limited_greedy") if is_v2 else ("noaux_tc",))
  if method not in allowed or is_v2 and normalize:
    raise ValueError(f"topk_method={method!r}, norm_topk_prob={normalize} of "
                     f"{family} are not supported; {' or '.join(allowed)}"
                     f"{' and false are' if is_v2 else ' is'}.")
  layers = common["num_layers"]
  dense = _dense_layers(fields, family, layers)
  groups, used = (_take(fields, name, 1) for name in ("n_group", "topk_group"))
  width = _take(fields, "moe_intermediate_size")
  return {
      "num_experts": _take(fields, "n_routed_experts"),
      "experts_per_token": _take(fields, "num_experts_per_tok"),
      "normalize_experts": normalize, "hidden_dim": width,
      "shared_dim": width * _take(fields, "n_shared_experts", 0),
      "shared_gate": False, "router": "softmax" if is_v2 else "sigmoid",
      "expert_groups": 1 if method == "greedy" else groups,
      "groups_per_token": 1 if method == "greedy" else used,
      "expert_scale": _take(fields, "routed_scaling_factor", 1.0),
      "dense_layers": dense}


def _dense_layers(fields, family, layers):
  """Reads how many layers have no experts, the first ones."""
  dense = _take(fields, "first_k_dense_replace", _DENSE.get(family, 0))
  types = _take(fields, "mlp_layer_types", None)
  if types is not None:
    dense = (types + ["sparse"]).index("sparse")
    if types != ["dense"] * dense + ["sparse"] * (layers - dense):
      raise ValueError(f"mlp_layer_types={types!r}: {layers} are needed, of "
                       "which the first are dense and the others sparse.")
  return min(dense, layers)


def _growth(fields):
  """Returns the gain of scores of long texts, by the fields of "yarn"."""
  old, new = (_take(dict(fields), name, {})
              for name in ("rope_scaling", "rope_parameters"))
  given = dict(new or old)
  rope_type = _take(given, "type", "default")
  rope_type = _take(given, "rope_type", rope_type)
  share = _take(given, "mscale_all_dim", 0.0)
  if rope_type == "default" or not share:
    return 1.0
  return 0.1 * share * math.log(max(_take(given, "factor"), 1.0)) + 1


def _rope_fields(config):
  """Writes the rotary embedding, and what `_growth` reads."""
  own = hf_rope.own_fields(config)
  if config.query_scalar and "rope_scaling" in own and config.rope_factor > 1:
    growth = ((config.plain_dim + config.head_dim) / config.query_scalar)**0.25
    share = (growth - 1) / (0.1 * math.log(config.rope_factor))
    own["rope_scaling"]["mscale_all_dim"] = float(f"{share:.{_DIGITS - 3}g}")
  return own
