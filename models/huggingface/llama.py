"""The fields of `config.json` of Llama and its likes.

A row of `FAMILIES` is what differs from a Llama; a new family is a row and its
class in `config.ARCHITECTURES`.
"""

from collections.abc import Callable
from typing import NamedTuple

from models.huggingface import config_fields
from models.huggingface import layer_types
from models.huggingface import rope as hf_rope

_take = config_fields.take
_SHARED = "shared_expert_intermediate_size"
_NOPE_EVERY = 4
# One in this many layers of OLMo 3 sees all positions.
_FULL_EVERY = 4
# Of Granite, and what they are called here.
_FACTORS = {"embedding_multiplier": "embedding_scale",
            "residual_multiplier": "residual_scale",
            "logits_scaling": "logit_divisor"}
_DIGITS = 12
_PHI3_LENGTH, _OWN_CODE = 4096, "(configuration|modeling)_"
# Names of "longrope" in its first files.
_PHI3_NAMES = ("su", "yarn")
# How files give windows: for all layers; for all, if a switch is on; for most
# layers by their types. Families without any refuse them.
_ALWAYS, _SWITCHED, _TYPED = "always", "switched", "typed"


def parse(fields, family, common):
  """Returns more fields of `transformer.Config` than the `common` ones. They
  are taken out of `fields`, what is left there is unknown. Raises ValueError
  for a field that is wrong or not supported."""
  row = FAMILIES[family]
  heads, head_dim = (_take(fields, name, None)
                     for name in ("num_key_value_heads", "head_dim"))
  part = _phi3(fields) if family == "phi3" else 1.0
  rope = _rope(fields, row, common["max_length"], part)
  given = {
      "num_kv_heads": heads or common["num_heads"],
      "head_dim": head_dim or config_fields.channels(common),
      **_feed_forward(fields, family),
      "feed_forward_bias": _take(fields, "mlp_bias", False),
      **config_fields.attention_and_norms(fields, tied=row.tied, eps=row.eps),
      **_windows(fields, family, common["num_layers"],
                 hf_rope.longest(rope, common["max_length"])),
      "rope_part": part, **rope, **row.fixed}
  return given | row.read(fields, {**common, **given})


def own_fields(config):
  """Returns what `parse` reads of an architecture, as far as they go."""
  family, row = config.family, FAMILIES[config.family]
  own = {"num_key_value_heads": config.num_kv_heads,
         "head_dim": config.head_dim, "hidden_act": "silu",
         "intermediate_size": config.hidden_dim,
         "rms_norm_eps": config.norm_eps, **hf_rope.own_fields(config)}
  if row.experts:
    own |= _expert_fields(config, family)
  if row.windows == _TYPED:
    own |= layer_types.own_windows(config) | layer_types.own_ropes(config)
  elif config.window:
    own["sliding_window"] = config.window
  if "attention_bias" in row.biases:
    own["attention_bias"] = config.qkv_bias
  if "mlp_bias" in row.biases:
    own["mlp_bias"] = config.feed_forward_bias
  if family.startswith("qwen"):
    own |= {"use_sliding_window": bool(config.window), "max_window_layers": 0}
  return own | row.write(config)


def _feed_forward(fields, family):
  """Reads the width of the feed-forward layer, and what concerns experts."""
  if not FAMILIES[family].experts:
    return {"hidden_dim": _take(fields, "intermediate_size")}
  number, width, chosen = FAMILIES[family].experts
  if family.startswith("qwen"):
    take_dense_layers(fields, family)
  normalize = family == "mixtral" or _take(fields, "norm_topk_prob", False)
  return {"hidden_dim": _take(fields, width),
          "num_experts": _take(fields, number),
          "experts_per_token": _take(fields, "num_experts_per_tok", chosen),
          "normalize_experts": normalize}


def take_dense_layers(fields, family):
  """Refuses layers of Qwen without experts, of which some versions have a few.
  """
  config_fields.take_one_of(fields, "decoder_sparse_step", family, (1,))
  config_fields.take_one_of(fields, "mlp_only_layers", family, ([],))
  fields.pop("intermediate_size", None)
  if family != "qwen2_moe":
    # Transformers 5 calls it so.
    fields.setdefault("num_experts", fields.pop("num_local_experts", None))


def _expert_fields(config, family):
  """Writes the fields of experts that `_feed_forward` reads."""
  number, width, _ = FAMILIES[family].experts
  own = {number: config.num_experts, width: config.hidden_dim,
         "num_experts_per_tok": config.experts_per_token}
  if family != "mixtral":
    own["norm_topk_prob"] = config.normalize_experts
  if family.startswith("qwen"):
    own |= {"decoder_sparse_step": 1, "mlp_only_layers": []}
  return own


def _qwen2_moe(fields, given):
  """Reads the expert of all tokens, and biases with a field of their own."""
  return {"shared_dim": _take(fields, _SHARED),
          "qkv_bias": given["qkv_bias"] or _take(fields, "qkv_bias", True)}


def granite_factors(fields, given):
  """Reads factors; scores have one instead of the root of the channels."""
  names = {"attention_multiplier": "query_scalar", **_FACTORS}
  factors = {ours: _take(fields, theirs, 1.0)
             for theirs, ours in names.items()}
  scalar = float(f"{factors['query_scalar']**-2:.{_DIGITS}g}")
  return {**factors,
          "query_scalar": 0 if scalar == given["head_dim"] else scalar}


def granite_fields(config):
  scalar = config.query_scalar or config.head_dim
  return {"attention_multiplier": scalar**-0.5,
          **{theirs: getattr(config, ours)
             for theirs, ours in _FACTORS.items()}}


def _phi3(fields):
  """Reads the part of the channels that is rotated; the rest is a Llama's."""
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
  config_fields.take_own_code(fields, "phi3", _OWN_CODE + r"phi3\.")
  return part


def _mimo(fields, given):
  del given
  config_fields.take_own_code(fields, "mimo", _OWN_CODE + r"mimo\.")
  return {}


def joined(config):
  """Returns the tensors of Phi-3 with several parameters, see `tensor_names`.
  """
  heads = {"query": config.num_heads, "key": config.num_kv_heads,
           "value": config.num_kv_heads}
  return [("attention", heads, 1), ("feed_forward", {"gate": 1, "up": 1}, 1)]


def _smollm3(fields, known):
  """Reads which layers are not rotated: every n-th, or none."""
  num_layers = known["num_layers"]
  every = _take(fields, "no_rope_layer_interval", _NOPE_EVERY)
  given = (_take(fields, "no_rope_layers", None)
           or _rotated(num_layers, every))
  every = given.index(0) + 1 if 0 in given else 0
  if given != _rotated(num_layers, every):
    raise ValueError(f"no_rope_layers={given!r}: {num_layers} are needed, of "
                     "which every n-th is 0 and the others are 1.")
  return {"full_every": every, "rope_full": not every}


def _rotated(num_layers, every):
  """Returns 1 for each layer that is rotated, 0 for every n-th."""
  return [int(not every or (i + 1) % every > 0) for i in range(num_layers)]


def _rope(fields, row, max_length, part):
  """Reads the rotary embedding; where layers have types, one of each type."""
  if row.windows != _TYPED:
    return hf_rope.parse(fields, max_length, row.theta, part)
  # A base next to the parameters holds for all layers.
  theta = _take(fields, "rope_theta", row.theta)
  return layer_types.two_ropes(fields, max_length, theta, theta)


def _windows(fields, family, layers, longest):
  """Reads the window, and which layers have none."""
  if FAMILIES[family].windows == _TYPED:
    return layer_types.windows(fields, family, layers, _FULL_EVERY)
  return {"window": _window(fields, family, layers, longest)}


def _window(fields, family, layers, longest):
  """Reads the window of all layers; 0 if no text is longer."""
  told = FAMILIES[family].windows
  if family == "qwen2_moe":
    # Which layers have one, each version of transformers says in another way.
    config_fields.take_one_of(fields, "use_sliding_window", family, (False,))
    config_fields.take_one_of(fields, "layer_types", family,
                              (["full_attention"] * layers,))
    for name in ("sliding_window", "max_window_layers"):
      fields.pop(name, None)
    return 0
  window = _take(fields, "sliding_window", None)
  if told == _SWITCHED:
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
  elif told != _ALWAYS and window is not None:
    raise ValueError(f"sliding_window={window} of {family} is not supported.")
  return config_fields.effective_window(window, longest)


class Family(NamedTuple):
  """The differences of a family from a Llama."""
  # Fields of `transformer.Config` that no field of a file gives
  fixed: dict = {}
  tied: bool = False  # Whether embeddings are tied where no field says
  eps: float = 1e-6  # Of the norms, where no field gives it
  # Base of the rotary wavelengths, where no field gives it
  theta: float = 10000.0
  # Fields of biases that transformers knows in this family
  biases: tuple[str, ...] = ()
  windows: str = ""  # How files give them; "" if it has none
  # Fields of their number and width, and how many a token has where no field
  # gives that; () for none
  experts: tuple = ()
  # `(fields, given) -> dict`, more fields of `transformer.Config`; `given` are
  # the ones already read
  read: Callable[..., dict] = lambda fields, given: {}
  # `transformer.Config -> dict`, the same as fields of `config.json`
  write: Callable[..., dict] = lambda config: {}
  # Of tensors, where they differ from a Llama's; see `tensor_names`
  names: dict[str, str] = {}


_BIASES = ("attention_bias", "mlp_bias")
# Else transformers takes a token that the vocabulary may lack.
_NO_PAD = {"pad_token_id": None}
_NORMS_AFTER = {"attention_out_norm": "post_attention_layernorm",
                "feed_forward_out_norm": "post_feedforward_layernorm"}
_EXPERT_NAMES = {"feed_forward/router": "mlp.gate",
                 "feed_forward/gate": "mlp.experts.{}.gate_proj",
                 "feed_forward/up": "mlp.experts.{}.up_proj",
                 "feed_forward/down": "mlp.experts.{}.down_proj"}
# And of an expert that all tokens use.
EXPERT_NAMES = {
    **_EXPERT_NAMES,
    "feed_forward/shared_gate": "mlp.shared_expert_gate",
    "feed_forward/shared/gate": "mlp.shared_expert.gate_proj",
    "feed_forward/shared/up": "mlp.shared_expert.up_proj",
    "feed_forward/shared/down": "mlp.shared_expert.down_proj"}
FAMILIES = {
    "qwen2_moe": Family(
        experts=("num_experts", "moe_intermediate_size", 4),
        read=_qwen2_moe, names=EXPERT_NAMES, write=lambda config: {
            _SHARED: config.shared_dim, "qkv_bias": config.qkv_bias}),
    "qwen3_moe": Family(
        fixed={"qk_norm": True}, biases=_BIASES[:1], windows=_SWITCHED,
        experts=("num_experts", "moe_intermediate_size", 8),
        names=_EXPERT_NAMES),
    "olmoe": Family(
        fixed={"joint_qk_norm": True}, eps=1e-5, biases=_BIASES[:1],
        experts=("num_experts", "intermediate_size", 8), names=_EXPERT_NAMES),
    "mixtral": Family(
        eps=1e-5, theta=1e6, windows=_ALWAYS,
        experts=("num_local_experts", "intermediate_size", 2),
        names={"feed_forward/router": "block_sparse_moe.gate",
               "feed_forward/gate": "block_sparse_moe.experts.{}.w1",
               "feed_forward/up": "block_sparse_moe.experts.{}.w3",
               "feed_forward/down": "block_sparse_moe.experts.{}.w2"}),
    "qwen3": Family(
        fixed={"qk_norm": True}, biases=_BIASES[:1], windows=_SWITCHED),
    "olmo3": Family(
        fixed={"joint_qk_norm": True, "reordered_norm": True}, eps=1e-5,
        theta=500000.0, biases=_BIASES[:1], windows=_TYPED, names=_NORMS_AFTER),
    "olmo2": Family(
        fixed={"joint_qk_norm": True, "reordered_norm": True}, eps=1e-5,
        biases=_BIASES[:1], names=_NORMS_AFTER),
    "smollm3": Family(
        tied=True, theta=2000000.0, biases=_BIASES, windows=_SWITCHED,
        read=_smollm3, write=lambda config: {
            **_NO_PAD, "no_rope_layers": _rotated(config.num_layers,
                                                  config.full_every)}),
    "granite": Family(
        biases=_BIASES, read=granite_factors, write=granite_fields),
    "qwen2": Family(fixed={"qkv_bias": True}, windows=_SWITCHED),
    # A Qwen2, and written as one: its config has a bias that its last
    # projection has not. Of its next-token modules see `mtp_tensors`.
    "mimo": Family(
        fixed={"family": "qwen2", "qkv_bias": True, "out_bias": False},
        windows=_SWITCHED, read=_mimo),
    "phi3": Family(
        eps=1e-5, windows=_ALWAYS, write=lambda config: {
            **_NO_PAD, "partial_rotary_factor": config.rope_part},
        names={**{f"attention/{name}": "self_attn.qkv_proj"
                  for name in ("query", "key", "value")},
               **{f"feed_forward/{name}": "mlp.gate_up_proj"
                  for name in ("gate", "up")}}),
    "mistral": Family(windows=_ALWAYS),
    "llama": Family(biases=_BIASES)}
