"""The fields of `config.json` that Llama and its likes have.

Mistral, Qwen2 and Qwen3, OLMo 2 and 3, SmolLM3, Granite; with experts Mixtral,
Qwen2, Qwen3 and OLMoE. Phi-3 is a Llama or Mistral whose tensors lie otherwise,
and is written as one of these, unless it rotates a part of the channels.
"""

from models.huggingface import config_fields
from models.huggingface import layer_types
from models.huggingface import rope as hf_rope

_take = config_fields.take
# Bases of rotary wavelengths that no field tells.
_THETAS = {"smollm3": 2000000.0, "olmo3": 500000.0}
_DEFAULT_EPS = {"olmo2": 1e-5, "olmo3": 1e-5, "phi3": 1e-5, "mixtral": 1e-5,
                "olmoe": 1e-5}
# With experts: the fields of their number and width, and how many a token has
# where that is not told.
_EXPERTS = {"mixtral": ("num_local_experts", "intermediate_size", 2),
            "olmoe": ("num_experts", "intermediate_size", 8),
            "qwen2_moe": ("num_experts", "moe_intermediate_size", 4),
            "qwen3_moe": ("num_experts", "moe_intermediate_size", 8)}
_SHARED = "shared_expert_intermediate_size"
_NOPE_EVERY = 4
# Of so many layers of OLMo 3, one sees all positions.
_FULL_EVERY = 4
# Of Granite, and what they are called here.
_FACTORS = {"embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_divisor"}
_DIGITS = 12
_PHI3_CODE = ("configuration_phi3.", "modeling_phi3.")
_PHI3_LENGTH = 4096
# Scalings that it has, and what its first files call the second one.
_PHI3_SCALINGS, _PHI3_NAMES = ("none", "longrope"), ("su", "yarn")


def parse(fields, family, common):
  """What these families have.

  Args:
    fields: dict, from which it is taken out.
    family: "llama", "mistral", "qwen2", "qwen3", "olmo2", "olmo3", "smollm3",
      "granite", "phi3", "mixtral", "qwen2_moe", "qwen3_moe" or "olmoe".
    common: fields of `transformer.Config` that are known already.

  Returns:
    More fields of it.

  Raises:
    ValueError: naming a field that is wrong or not supported.
  """
  heads, head_dim = (_take(fields, name, None)
                     for name in ("num_key_value_heads", "head_dim"))
  part = _phi3(fields) if family == "phi3" else 1.0
  rope = _rope(fields, family, common["max_length"], part)
  attention_bias = _take(fields, "attention_bias", False)
  head_dim = head_dim or config_fields.channels(common)
  return {
      "num_kv_heads": heads or common["num_heads"],
      "head_dim": head_dim,
      **_feed_forward(fields, family),
      "qkv_bias": attention_bias or family == "qwen2" or (
          family == "qwen2_moe" and _take(fields, "qkv_bias", True)),
      "out_bias": attention_bias,
      "feed_forward_bias": _take(fields, "mlp_bias", False),
      "qk_norm": family in ("qwen3", "qwen3_moe"),
      "joint_qk_norm": family in ("olmo2", "olmo3", "olmoe"),
      "reordered_norm": family in ("olmo2", "olmo3"),
      "tie_embeddings": _take(fields, "tie_word_embeddings",
                              family == "smollm3"),
      "norm_eps": _take(fields, "rms_norm_eps",
                        _DEFAULT_EPS.get(family, 1e-6)),
      **_windows(fields, family, common["num_layers"],
                 hf_rope.longest(rope, common["max_length"])),
      "rope_part": part, **rope,
      **(_smollm3(fields, common["num_layers"]) if family == "smollm3" else {}),
      **(_granite(fields, head_dim) if family == "granite" else {})}


def own_fields(config):
  """An architecture as fields of `config.json`; what is lost is not told.

  Args:
    config: a `transformer.Config`.

  Returns:
    The name of the family, and its fields beside those that all have.
  """
  family = _family(config)
  own = {"num_key_value_heads": config.num_kv_heads,
         "head_dim": config.head_dim, "hidden_act": "silu",
         "intermediate_size": config.hidden_dim,
         "rms_norm_eps": config.norm_eps, **hf_rope.own_fields(config)}
  if config.num_experts:
    own |= _expert_fields(config, family)
  if family == "olmo3":
    own |= layer_types.own_windows(config) | layer_types.own_ropes(config)
  elif config.window:
    own["sliding_window"] = config.window
  if family not in ("mistral", "qwen2", "qwen2_moe", "mixtral", "phi3"):
    own["attention_bias"] = config.bias or config.qkv_bias
  if family in ("llama", "smollm3", "granite"):
    own["mlp_bias"] = config.bias or config.feed_forward_bias
  if family.startswith("qwen"):
    own |= {"use_sliding_window": bool(config.window), "max_window_layers": 0}
  if family == "phi3":
    own["partial_rotary_factor"] = config.rope_part
  if family == "smollm3":
    own["no_rope_layers"] = _rotated(config.num_layers, config.full_every)
  if family in ("phi3", "smollm3"):
    # Without it transformers takes one that this vocabulary may lack.
    own["pad_token_id"] = None
  if family == "granite":
    scalar = config.query_scalar or config.head_dim
    own |= {"attention_multiplier": scalar**-0.5,
            **{theirs: getattr(config, ours)
               for theirs, ours in _FACTORS.items()}}
  return family, own


def _family(config):
  """Whose fields say most of an architecture."""
  if config.num_experts:
    if config.shared_dim:
      return "qwen2_moe"
    if config.qk_norm:
      return "qwen3_moe"
    return "olmoe" if config.joint_qk_norm else "mixtral"
  if config.qk_norm:
    return "qwen3"
  if config.reordered_norm:
    return "olmo3" if config.window else "olmo2"
  if not config.rope_full and config.full_every:
    return "smollm3"
  if config.query_scalar or any(getattr(config, ours) != 1
                                for ours in _FACTORS.values()):
    return "granite"
  if config.qkv_bias and not config.out_bias:
    return "qwen2"
  if config.rope_part != 1 and config.rope_scaling in _PHI3_SCALINGS:
    return "phi3"
  return "mistral" if config.window else "llama"


def _feed_forward(fields, family):
  """The width of the feed-forward layer, and what is told of experts."""
  if family not in _EXPERTS:
    return {"hidden_dim": _take(fields, "intermediate_size")}
  number, width, chosen = _EXPERTS[family]
  if family.startswith("qwen"):
    # Layers without experts, of which some versions have a few.
    config_fields.take_one_of(fields, "decoder_sparse_step", family, (1,))
    config_fields.take_one_of(fields, "mlp_only_layers", family, ([],))
    fields.pop("intermediate_size", None)
  if family == "qwen3_moe":
    # Transformers 5 calls it so.
    fields.setdefault(number, fields.pop("num_local_experts", None))
  normalize = family == "mixtral" or _take(fields, "norm_topk_prob", False)
  return {"hidden_dim": _take(fields, width),
          "num_experts": _take(fields, number),
          "experts_per_token": _take(fields, "num_experts_per_tok", chosen),
          "normalize_experts": normalize,
          "shared_dim": _take(fields, _SHARED) if family == "qwen2_moe" else 0}


def _expert_fields(config, family):
  """What `_feed_forward` reads of experts."""
  number, width, _ = _EXPERTS[family]
  own = {number: config.num_experts, width: config.hidden_dim,
         "num_experts_per_tok": config.experts_per_token}
  if family != "mixtral":
    own["norm_topk_prob"] = config.normalize_experts
  if family.startswith("qwen"):
    own |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
  if family == "qwen2_moe":
    own |= {_SHARED: config.shared_dim,
            "qkv_bias": config.bias or config.qkv_bias}
  return own


def _granite(fields, head_dim):
  """The factors of Granite; scores have one instead of the channels' root."""
  names = {"attention_multiplier": "query_scalar", **_FACTORS}
  found = {}
  for theirs, ours in names.items():
    found[ours] = _take(fields, theirs, 1.0)
  scalar = float(f"{found['query_scalar']**-2:.{_DIGITS}g}")
  return {**found, "query_scalar": 0 if scalar == head_dim else scalar}


def _phi3(fields):
  """The part of the channels that is rotated; the rest becomes a Llama's."""
  part = _take(fields, "partial_rotary_factor", 1.0)
  if fields.get(hf_rope.ORIGINAL) is None:
    fields[hf_rope.ORIGINAL] = _PHI3_LENGTH
  for name in ("rope_scaling", "rope_parameters"):
    rope = dict(_take(fields, name, {}))
    if rope.get("rope_type", rope.get("type")) in _PHI3_NAMES:
      rope["rope_type"] = "longrope"
    # Transformers 5 has it there.
    part = _take(dict(rope), "partial_rotary_factor", part)
    fields[name] = rope
  # Its files name their own code, which transformers has since then.
  classes = _take(fields, "auto_map", {}).values()
  unknown = [x for x in classes if not str(x).startswith(_PHI3_CODE)]
  if unknown:
    raise ValueError(f"auto_map: {unknown[0]} of phi3 is not supported.")
  return part


def _smollm3(fields, num_layers):
  """Which layers of SmolLM3 are not rotated: every n-th, or none."""
  every = _take(fields, "no_rope_layer_interval", _NOPE_EVERY)
  given = (_take(fields, "no_rope_layers", None)
           or _rotated(num_layers, every))
  every = given.index(0) + 1 if 0 in given else 0
  if given != _rotated(num_layers, every):
    raise ValueError(f"no_rope_layers={given!r}: {num_layers} are needed, of "
                     "which every n-th is 0 and the others are 1.")
  return {"full_every": every, "rope_full": not every}


def _rotated(num_layers, every):
  """1 for each layer that is rotated, 0 for every n-th."""
  return [int(not every or (i + 1) % every > 0) for i in range(num_layers)]


def _rope(fields, family, max_length, part):
  """The rotary embedding; of OLMo 3 without its scaling where a window is."""
  theta = _THETAS.get(family, 10000.0)
  if family != "olmo3":
    return hf_rope.parse(fields, max_length, theta, part)
  # A base beside the parameters is that of all layers.
  theta = _take(fields, "rope_theta", theta)
  return layer_types.two_ropes(fields, max_length, theta, theta)


def _windows(fields, family, layers, longest):
  """The window, and which layers have none."""
  if family == "olmo3":
    return layer_types.windows(fields, family, layers, _FULL_EVERY)
  return {"window": _window(fields, family, layers, longest)}


def _window(fields, family, layers, longest):
  """The window of all layers; 0 where it would never be felt."""
  if family == "qwen2_moe":
    # Which layers have one, each version of transformers tells otherwise.
    config_fields.take_one_of(fields, "use_sliding_window", family, (False,))
    config_fields.take_one_of(fields, "layer_types", family,
                              (["full_attention"] * layers,))
    for name in ("sliding_window", "max_window_layers"):
      fields.pop(name, None)
    return 0
  window = _take(fields, "sliding_window", None)
  if family in ("qwen2", "qwen3", "qwen3_moe", "smollm3"):
    used = _take(fields, "use_sliding_window", False)
    first = _take(fields, "max_window_layers", layers)
    if family == "qwen3_moe":
      first = 0  # Transformers does not look at it.
    sliding = [bool(used and window and i >= first) for i in range(layers)]
    types = [f"{'sliding' if x else 'full'}_attention" for x in sliding]
    types = _take(fields, "layer_types", types)
    if len(set(types)) != 1 or types[0] not in ("full_attention",
                                                "sliding_attention"):
      raise ValueError(f"layer_types={types!r}: only layers that are all "
                       "full_attention or all sliding_attention are supported.")
    if types[0] == "full_attention":
      return 0
    if not window:
      raise ValueError(f"layer_types={types!r}: sliding_window must be given.")
  elif family not in ("mistral", "mixtral", "phi3") and window is not None:
    raise ValueError(f"sliding_window={window} of {family} is not supported.")
  return config_fields.effective_window(window, longest)
