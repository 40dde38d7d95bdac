"""Fields of a `config.json`: their types and ranges, checked in one place.

`FIELDS` has every field of Hugging Face's files that this package reads,
`ARCHITECTURE` those of `transformer.Config`. The ranges are far wider than
published models; what lies outside is a damaged or hostile file, which is
refused before anything of that size is allocated.
"""

import dataclasses
import re

from models import transformer
from models.folders import json_files

_Field = json_files.Field
_BOOL = _Field(bool)
_WORD = _Field(str, 0, 256)
_VOCABULARY = _Field(int, 1, 1 << 24)
_WIDTH = _Field(int, 1, 1 << 20)
_LAYERS = _Field(int, 1, 1 << 10)
_HEADS = _Field(int, 1, 1 << 12)
_HEAD_DIM = _Field(int, 1, 1 << 14)
_LENGTH = _Field(int, 1, 1 << 30)
_EXPERTS = _Field(int, 1, 1 << 10)
_EPS = _Field(float, 0, 1)
_PART = _Field(float, 0, 1)
_SCALE = _Field(float, 1e-9, 1e9)
_CAP = _Field(float, 0, 1e9)
# Of rotary wavelengths.
_THETA = _Field(float, 1, 1e12)
_FACTOR = _Field(float, 1e-6, 1e6)
_FACTORS = _Field(list, 0, _HEAD_DIM.most, _FACTOR)
_TURNS = _Field(float, 0, 1e6)
_LAYER_LIST = _Field(list, 0, _LAYERS.most)

FIELDS = {
    # Sizes.
    "vocab_size": _VOCABULARY, "hidden_size": _WIDTH, "n_embd": _WIDTH,
    "word_embed_proj_dim": _WIDTH, "intermediate_size": _WIDTH,
    "moe_intermediate_size": _WIDTH, "shared_expert_intermediate_size": _WIDTH,
    "ffn_dim": _WIDTH, "n_inner": _WIDTH, "d_model": _WIDTH,
    "mlp_hidden_size": _WIDTH, "n_layers": _LAYERS, "n_heads": _HEADS,
    "n_kv_heads": _HEADS, "max_sequence_length": _LENGTH,
    "num_hidden_layers": _LAYERS, "n_layer": _LAYERS,
    "num_attention_heads": _HEADS, "n_head": _HEADS,
    "num_key_value_heads": _HEADS, "head_dim": _HEAD_DIM,
    "max_position_embeddings": _LENGTH, "n_positions": _LENGTH,
    "num_experts": _EXPERTS, "num_local_experts": _EXPERTS,
    "linear_num_key_heads": _HEADS, "linear_num_value_heads": _HEADS,
    "linear_key_head_dim": _HEAD_DIM, "linear_value_head_dim": _HEAD_DIM,
    "linear_conv_kernel_dim": _Field(int, 2, 64),
    "full_attention_interval": _Field(int, 2, _LAYERS.most),
    "mamba_n_groups": _HEADS, "mamba_n_heads": _HEADS,
    "mamba_d_state": _HEAD_DIM, "mamba_d_conv": _Field(int, 2, 64),
    "mamba_expand": _Field(int, 1, 64), "shared_intermediate_size": _WIDTH,
    "num_experts_per_tok": _EXPERTS, "n_routed_experts": _EXPERTS,
    "n_shared_experts": _EXPERTS._replace(least=0), "n_group": _EXPERTS,
    "topk_group": _EXPERTS, "routed_scaling_factor": _SCALE,
    "first_k_dense_replace": _LAYERS._replace(least=0),
    "kv_lora_rank": _WIDTH, "q_lora_rank": _WIDTH,
    "qk_nope_head_dim": _HEAD_DIM, "qk_rope_head_dim": _HEAD_DIM,
    "v_head_dim": _HEAD_DIM, "index_topk": _LENGTH,
    # Layers.
    "attention_bias": _BOOL, "mlp_bias": _BOOL, "qkv_bias": _BOOL,
    "use_bias": _BOOL, "enable_bias": _BOOL, "tie_word_embeddings": _BOOL,
    "include_qkv_bias": _BOOL, "weight_tying": _BOOL,
    "norm_topk_prob": _BOOL, "do_layer_norm_before": _BOOL,
    "use_parallel_residual": _BOOL,
    "rms_norm_eps": _EPS, "layer_norm_eps": _EPS, "layer_norm_epsilon": _EPS,
    "norm_epsilon": _EPS,
    "embedding_multiplier": _SCALE, "residual_multiplier": _SCALE,
    "logits_scaling": _SCALE, "attention_multiplier": _SCALE,
    "query_pre_attn_scalar": _Field(int, 1, 1 << 24),
    "attn_logit_softcapping": _CAP, "final_logit_softcapping": _CAP,
    # Windows.
    "sliding_window": _LENGTH, "use_sliding_window": _BOOL,
    "max_window_layers": _Field(int, 0, _LENGTH.most),
    "sliding_window_pattern": _Field(int, 1, _LAYERS.most + 1),
    "_sliding_window_pattern": _Field(int, 1, _LAYERS.most + 1),
    "layer_types": _LAYER_LIST._replace(items=_WORD),
    "no_rope_layers": _LAYER_LIST._replace(items=_Field(int, 0, 1)),
    "no_rope_layer_interval": _Field(int, 1, _LAYERS.most),
    "mlp_layer_types": _LAYER_LIST._replace(items=_WORD),
    "topk_method": _WORD, "rope_interleave": _BOOL,
    # Rotary embeddings.
    "rope_theta": _THETA, "rotary_emb_base": _THETA,
    "rope_local_base_freq": _THETA,
    "rotary_pct": _PART, "partial_rotary_factor": _PART,
    "rope_scaling": _Field(dict), "rope_parameters": _Field(dict),
    "type": _WORD, "rope_type": _WORD,
    "full_attention": _Field(dict), "sliding_attention": _Field(dict),
    "factor": _FACTOR, "low_freq_factor": _TURNS, "high_freq_factor": _TURNS,
    "beta_slow": _TURNS, "beta_fast": _TURNS,
    "mscale": _TURNS, "mscale_all_dim": _TURNS,
    "attention_factor": _FACTOR, "truncate": _BOOL,
    "short_factor": _FACTORS, "long_factor": _FACTORS,
    "original_max_position_embeddings": _Field(float, 1, _LENGTH.most),
    # Everything else.
    "model_type": _WORD, "dtype": _WORD, "torch_dtype": _WORD,
    "hidden_act": _WORD, "text_config": _Field(dict),
    "auto_map": _Field(dict), "mask_token_id": _Field(int, 0, 1 << 24)}

ARCHITECTURE = {
    "vocab_size": _VOCABULARY, "dim": _WIDTH, "num_layers": _LAYERS,
    "num_heads": _HEADS, "num_kv_heads": _HEADS, "head_dim": _HEAD_DIM,
    "hidden_dim": _WIDTH, "max_length": _LENGTH,
    "num_experts": _EXPERTS._replace(least=0),
    "experts_per_token": _EXPERTS._replace(least=0),
    "shared_dim": _WIDTH._replace(least=0),
    "linear_key_heads": _HEADS._replace(least=0),
    "linear_value_heads": _HEADS._replace(least=0),
    "linear_key_dim": _HEAD_DIM._replace(least=0),
    "linear_value_dim": _HEAD_DIM._replace(least=0),
    "linear_conv": _Field(int, 0, 64),
    "expert_groups": _EXPERTS._replace(least=0),
    "groups_per_token": _EXPERTS._replace(least=0), "expert_scale": _SCALE,
    "dense_layers": _LAYERS._replace(least=0),
    "dense_dim": _WIDTH._replace(least=0),
    "latent_dim": _WIDTH._replace(least=0),
    "query_rank": _WIDTH._replace(least=0),
    "plain_dim": _HEAD_DIM._replace(least=0),
    "value_dim": _HEAD_DIM._replace(least=0),
    "outputs": _WIDTH._replace(least=0),
    "embedding_dim": _WIDTH._replace(least=0),
    "norm_eps": _EPS, "residual_scale": _SCALE, "embedding_scale": _SCALE,
    "logit_divisor": _SCALE, "query_scalar": _Field(float, 0, 1e18),
    "attention_softcap": _CAP, "logit_softcap": _CAP,
    "window": _LENGTH._replace(least=0),
    "full_every": _Field(int, 0, _LAYERS.most + 1),
    "attention_layers": _LAYER_LIST._replace(
        items=_Field(int, 0, _LAYERS.most)),
    "rope_part": _PART, "rope_theta": _THETA,
    "rope_local_theta": _THETA._replace(least=0), "rope_factor": _FACTOR,
    "rope_low_turns": _TURNS, "rope_high_turns": _TURNS,
    "rope_original_length": _Field(float, 0, _LENGTH.most),
    "rope_gain": _FACTOR, "rope_short_factors": _FACTORS,
    "rope_long_factors": _FACTORS}

_NO_DEFAULT = object()


def take(fields, name, default=_NO_DEFAULT):
  """Takes a field out, checked by `FIELDS`; null counts as absent.

  Raises ValueError if it is absent and there is no default.
  """
  value = fields.pop(name, None)
  if value is None:
    if default is _NO_DEFAULT:
      raise ValueError(f"{name} must be given.")
    return default
  return json_files.check(name, value, FIELDS[name])


def take_one_of(fields, name, family, allowed):
  """Takes a field out that may only be absent or have certain values."""
  value = fields.pop(name, None)
  if value is not None and value not in allowed:
    raise ValueError(
        f"{name}={json_files.shown(value)} of {family} is not supported; "
        f"{' or '.join(map(json_files.shown, allowed))} is.")


def attention_and_norms(fields, *, tied=False, eps=1e-6) -> dict:
  """Reads biases of attention, tied embeddings and eps, as many families do."""
  bias = take(fields, "attention_bias", False)
  return {"qkv_bias": bias, "out_bias": bias,
          "tie_embeddings": take(fields, "tie_word_embeddings", tied),
          "norm_eps": take(fields, "rms_norm_eps", eps)}


def own_attention_and_norms(config) -> dict:
  """Returns heads, and what `attention_and_norms` reads."""
  return {"num_key_value_heads": config.num_kv_heads,
          "head_dim": config.head_dim, "attention_bias": config.qkv_bias,
          "rms_norm_eps": config.norm_eps}


def take_own_code(fields, family, known: str):
  """Takes out the code that files name, which has to match an expression.

  It is not run: what it computes is computed here.
  """
  for value in take(fields, "auto_map", {}).values():
    if not re.match(known, str(value).rpartition("--")[2]):
      raise ValueError(f"auto_map: {json_files.shortened(str(value))} of "
                       f"{family} is not supported.")


def architecture(values: dict) -> transformer.Config:
  """Returns the `transformer.Config` of a dict of its fields, from JSON.

  Raises ValueError for a field that is unknown, missing, or out of range.
  """
  known = {field.name: field for field in dataclasses.fields(
      transformer.Config)}
  unknown = sorted(set(values) - set(known))
  if unknown:
    raise ValueError(f"unknown {unknown}; the fields are {sorted(known)}.")
  missing = sorted(name for name, field in known.items()
                   if name not in values
                   and field.default is dataclasses.MISSING)
  if missing:
    raise ValueError(f"{missing} must be given.")
  # JSON has no tuples, and a `Config` is hashed.
  values = {name: list(x) if isinstance(x, tuple) else x
            for name, x in values.items()}
  checked = {name: json_files.check(name, x, _field(known[name]))
             for name, x in values.items()}
  config = transformer.Config(**{
      name: tuple(x) if isinstance(x, list) else x
      for name, x in checked.items()})
  _check_rotation(config)
  return config


def _check_rotation(config):
  """Raises an error if no rotary embedding has these numbers."""
  channels_ = int(config.head_dim * config.rope_part)
  if config.positions == "rope" and channels_ % 2:
    raise ValueError(f"head_dim={config.head_dim}, rope_part="
                     f"{config.rope_part}: {channels_} channels cannot be "
                     "rotated, an even number is needed.")
  if config.rope_scaling == "llama3" and not (
      config.rope_low_turns < config.rope_high_turns):
    raise ValueError(f"rope_low_turns={config.rope_low_turns}: less than "
                     f"rope_high_turns={config.rope_high_turns} is needed.")


def _field(field):
  """Returns the range of a field of `transformer.Config`, or its type alone."""
  return ARCHITECTURE.get(field.name) or (
      _WORD if field.type is str else _Field(field.type))


def channels(common):
  """Returns the channels of a head, where a file does not give them."""
  if common["dim"] % common["num_heads"]:
    raise ValueError(f"num_attention_heads={common['num_heads']} does not "
                     f"divide hidden_size={common['dim']}.")
  return common["dim"] // common["num_heads"]


def effective_window(window, max_length):
  """Returns a window, or 0 if no text is longer than it."""
  return window if window and window < max_length else 0
