"""Fields of a `config.json`: their types and ranges, with their checks.

Ranges far exceed published models: they refuse damaged or hostile files before
anything of that size is allocated.
"""

import dataclasses
import re

from models import transformer
from models.folders import json_files

_Field = json_files.Field
_BOOL, _DICT = _Field(bool), _Field(dict)
_WORD = _Field(str, 0, 256)
_VOCABULARY = _Field(int, 1, 1 << 24)
_WIDTH = _Field(int, 1, 1 << 20)
_LAYERS = _EXPERTS = _Field(int, 1, 1 << 10)
_HEADS = _Field(int, 1, 1 << 12)
_HEAD_DIM = _Field(int, 1, 1 << 14)
_LENGTH = _Field(int, 1, 1 << 30)
_CONVOLUTION = _Field(int, 2, 64)
_EPS = _PART = _Field(float, 0, 1)
_SCALE = _Field(float, 1e-9, 1e9)
_CAP = _Field(float, 0, 1e9)
# Of rotary wavelengths.
_THETA = _Field(float, 1, 1e12)
_FACTOR = _Field(float, 1e-6, 1e6)
_FACTORS = _Field(list, 0, _HEAD_DIM.most, _FACTOR)
_TURNS = _Field(float, 0, 1e6)
_LAYER_LIST = _Field(list, 0, _LAYERS.most)


def _named(*groups):
  """Returns the range of each name, of pairs of a range and names."""
  return {name: field for field, names in groups for name in names.split()}


def _or_zero(field):
  return field._replace(least=0)


FIELDS = _named(
    # Sizes.
    (_VOCABULARY, "vocab_size query_pre_attn_scalar"),
    (_or_zero(_VOCABULARY), "mask_token_id"),
    (_WIDTH, """
     hidden_size n_embd d_model word_embed_proj_dim intermediate_size
     moe_intermediate_size shared_expert_intermediate_size
     shared_intermediate_size mlp_hidden_size ffn_dim n_inner kv_lora_rank
     q_lora_rank"""),
    (_LAYERS, "num_hidden_layers n_layer n_layers no_rope_layer_interval"),
    (_LAYERS._replace(least=2), "full_attention_interval"),
    (_LAYERS._replace(most=_LAYERS.most + 1),
     "sliding_window_pattern _sliding_window_pattern"),
    (_HEADS, """
     num_attention_heads n_head n_heads num_key_value_heads n_kv_heads
     linear_num_key_heads linear_num_value_heads mamba_n_groups
     mamba_n_heads"""),
    (_HEAD_DIM, """
     head_dim linear_key_head_dim linear_value_head_dim mamba_d_state
     qk_nope_head_dim qk_rope_head_dim v_head_dim"""),
    (_CONVOLUTION, "linear_conv_kernel_dim mamba_d_conv"),
    (_CONVOLUTION._replace(least=1), "mamba_expand"),
    (_LENGTH, """
     max_position_embeddings n_positions max_sequence_length sliding_window
     index_topk"""),
    (_or_zero(_LENGTH), "max_window_layers"),
    (_EXPERTS, """
     num_experts num_local_experts num_experts_per_tok n_routed_experts n_group
     topk_group"""),
    (_or_zero(_EXPERTS), "n_shared_experts first_k_dense_replace"),
    # Layers.
    (_BOOL, """
     attention_bias mlp_bias qkv_bias use_bias enable_bias include_qkv_bias
     tie_word_embeddings weight_tying norm_topk_prob do_layer_norm_before
     use_parallel_residual use_sliding_window rope_interleave truncate"""),
    (_EPS, "rms_norm_eps layer_norm_eps layer_norm_epsilon norm_epsilon"),
    (_SCALE, """
     embedding_multiplier residual_multiplier logits_scaling
     attention_multiplier routed_scaling_factor"""),
    (_CAP, "attn_logit_softcapping final_logit_softcapping"),
    (_LAYER_LIST._replace(items=_WORD), "layer_types mlp_layer_types"),
    (_LAYER_LIST._replace(items=_Field(int, 0, 1)), "no_rope_layers"),
    # Rotary embeddings.
    (_THETA, "rope_theta rotary_emb_base rope_local_base_freq"),
    (_PART, "rotary_pct partial_rotary_factor"),
    (_DICT, "rope_scaling rope_parameters full_attention sliding_attention"),
    (_FACTOR, "factor attention_factor"),
    (_TURNS, """
     low_freq_factor high_freq_factor beta_slow beta_fast mscale
     mscale_all_dim"""),
    (_FACTORS, "short_factor long_factor"),
    (_Field(float, 1, _LENGTH.most), "original_max_position_embeddings"),
    # Everything else.
    (_WORD, """
     model_type dtype torch_dtype hidden_act topk_method type rope_type"""),
    (_DICT, "text_config auto_map"))

ARCHITECTURE = _named(
    (_VOCABULARY, "vocab_size"), (_WIDTH, "dim hidden_dim"),
    (_LAYERS, "num_layers"), (_HEADS, "num_heads num_kv_heads"),
    (_HEAD_DIM, "head_dim"), (_LENGTH, "max_length"),
    (_or_zero(_EXPERTS), """
     num_experts experts_per_token expert_groups groups_per_token
     dense_layers"""),
    (_or_zero(_WIDTH), """
     shared_dim dense_dim latent_dim query_rank outputs embedding_dim"""),
    (_or_zero(_HEADS), "linear_key_heads linear_value_heads"),
    (_or_zero(_HEAD_DIM), """
     linear_key_dim linear_value_dim plain_dim value_dim"""),
    (_or_zero(_CONVOLUTION), "linear_conv"), (_or_zero(_LENGTH), "window"),
    (_Field(int, 0, _LAYERS.most + 1), "full_every"),
    (_LAYER_LIST._replace(items=_or_zero(_LAYERS)), "attention_layers"),
    (_EPS, "norm_eps"), (_Field(float, 0, 1e18), "query_scalar"),
    (_SCALE, "expert_scale residual_scale embedding_scale logit_divisor"),
    (_CAP, "attention_softcap logit_softcap"), (_PART, "rope_part"),
    (_THETA, "rope_theta"), (_or_zero(_THETA), "rope_local_theta"),
    (_FACTOR, "rope_factor rope_gain"),
    (_TURNS, "rope_low_turns rope_high_turns"),
    (_Field(float, 0, _LENGTH.most), "rope_original_length"),
    (_FACTORS, "rope_short_factors rope_long_factors"))

_NO_DEFAULT = object()


def take(fields, name, default=_NO_DEFAULT):
  """Takes a field out, checked by `FIELDS`; null counts as absent. Raises
  ValueError if it is absent and there is no default."""
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
  """Takes out the code that files name, which has to match an expression. It is
  not run: what it computes is computed here."""
  for value in take(fields, "auto_map", {}).values():
    if not re.match(known, str(value).rpartition("--")[2]):
      raise ValueError(f"auto_map: {json_files.shortened(str(value))} of "
                       f"{family} is not supported.")


def architecture(values: dict) -> transformer.Config:
  """Returns the `transformer.Config` of a dict of its fields, from JSON. Raises
  ValueError for a field that is unknown, missing, or out of range."""
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
  ranges = {name: ARCHITECTURE.get(name) or (
      _WORD if field.type is str else _Field(field.type))
            for name, field in known.items()}
  checked = {name: json_files.check(name, x, ranges[name])
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


def channels(common):
  """Returns the channels of a head, where a file does not give them."""
  if common["dim"] % common["num_heads"]:
    raise ValueError(f"num_attention_heads={common['num_heads']} does not "
                     f"divide hidden_size={common['dim']}.")
  return common["dim"] // common["num_heads"]


def effective_window(window, max_length):
  """Returns a window, or 0 if no text is longer than it."""
  return window if window and window < max_length else 0
