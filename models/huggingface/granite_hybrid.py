"""The fields of `config.json` that Granite 4.0 H has, without experts.

Mamba-2 layers, and a few of attention; the factors of Granite 3. Its experts
(H Tiny, H Small) are refused.
"""

from models.huggingface import config_fields
from models.huggingface import layer_types
from models.huggingface import llama
from models.huggingface import rope as hf_rope

_take = config_fields.take
FAMILY = "granitemoehybrid"
_SIZES = {"linear_key_heads": "mamba_n_groups",
          "linear_value_heads": "mamba_n_heads",
          "linear_key_dim": "mamba_d_state", "linear_conv": "mamba_d_conv"}
# What files of transformers 4 call the types of layers.
_TYPES = {"mamba": layer_types.LINEAR, "attention": layer_types.FULL}
# Steps are not bounded; JSON has no infinity, for which there are three words.
_UNBOUNDED = tuple([0.0, x] for x in (
    float("inf"), "Infinity", {"__float__": "Infinity"}))
# These change nothing, or concern experts alone.
_UNUSED = ("mamba_chunk_size", "intermediate_size", "num_experts_per_tok",
           "init_method", "normalization_function", "logits_to_keep")
DEFAULTS = {"max_position_embeddings": 2048, "mamba_n_heads": 128,
            "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4,
            "mamba_expand": 2, "num_local_experts": 8,
            "shared_intermediate_size": 1024}
NAMES = {"feed_forward/gate": "shared_mlp.input_linear",
         "feed_forward/up": "shared_mlp.input_linear",
         "feed_forward/down": "shared_mlp.output_linear",
         "mamba": "mamba", "mamba/out": "mamba.out_proj",
         **{f"mamba/{name}": "mamba.in_proj"
            for name in ("gate", "value", "key", "query", "decay")}}
# Parameters that other families lack, by our names.
KINDS = {"D": "D", "norm_scale": "norm.weight",
         **{f"{name}_conv_bias": "conv1d.bias"
            for name in ("query", "key", "value")}}


def parse(fields, family, common):
  """Reads what this family has; see `qwen3_next.parse`."""
  config_fields.take_one_of(fields, "num_local_experts", family, (0,))
  for name, allowed in (("mamba_conv_bias", (True,)),
                        ("mamba_proj_bias", (False,)),
                        ("time_step_limit", _UNBOUNDED),
                        ("position_embedding_type", ("nope", "rope"))):
    kept = fields.get(name)
    config_fields.take_one_of(fields, name, family, allowed)
  for name in _UNUSED:
    fields.pop(name, None)
  given = {
      "num_kv_heads": _take(fields, "num_key_value_heads",
                            common["num_heads"]),
      "head_dim": _take(fields, "head_dim",
                        None) or config_fields.channels(common),
      "hidden_dim": _take(fields, "shared_intermediate_size"),
      **config_fields.attention_and_norms(fields),
      "positions": kept if kept == "rope" else "none",
      **hf_rope.parse(fields, common["max_length"]),
      "linear_layer": "mamba2", **_state_fields(fields, common)}
  return given | llama.granite_factors(fields, given)


def _state_fields(fields, common):
  """Reads the sizes of layers with a state, and which have attention."""
  sizes = {ours: _take(fields, theirs) for ours, theirs in _SIZES.items()}
  heads = sizes["linear_value_heads"]
  width = _take(fields, "mamba_expand") * common["dim"]
  if width % heads:
    raise ValueError(f"mamba_n_heads={heads}: a divisor of mamba_expand * "
                     f"hidden_size = {width} is needed.")
  config_fields.take_one_of(fields, "mamba_d_head", FAMILY,
                            ("auto", width // heads))
  mixers = [_TYPES.get(x, x) for x in _take(fields, "layer_types", None) or [
      layer_types.LINEAR] * common["num_layers"]]
  if (len(mixers) != common["num_layers"] or layer_types.LINEAR not in mixers
      or set(mixers) - set(_TYPES.values())):
    raise ValueError(
        f"layer_types={mixers!r}: {common['num_layers']} are needed, each "
        f"{layer_types.FULL} or {layer_types.LINEAR}, of which there must be "
        "one.")
  return {**sizes, "linear_value_dim": width // heads,
          "attention_layers": [i for i, mixer in enumerate(mixers)
                               if mixer == layer_types.FULL]}


def own_fields(config):
  """Returns what `parse` reads of an architecture, as far as they go."""
  width = config.linear_value_heads * config.linear_value_dim
  return {
      **config_fields.own_attention_and_norms(config), "hidden_act": "silu",
      "shared_intermediate_size": config.hidden_dim, "num_local_experts": 0,
      "position_embedding_type": "rope" if config.positions == "rope"
                                 else "nope",
      "layer_types": [
          layer_types.FULL if i in config.attention_layers else
          layer_types.LINEAR for i in range(config.num_layers)],
      **{theirs: getattr(config, ours) for ours, theirs in _SIZES.items()},
      "mamba_d_head": config.linear_value_dim,
      "mamba_expand": width // config.dim,
      **hf_rope.own_fields(config), **llama.granite_fields(config)}


def joined(config):
  """Returns tensors with several parameters, see `tensor_names`."""
  keys = config.linear_key_heads * config.linear_key_dim
  values = config.linear_value_heads * config.linear_value_dim
  sizes = {"gate": values, "value": values, "key": keys, "query": keys,
           "decay": config.linear_value_heads}
  convolutions = [("mamba", {f"{name}_conv{end}": sizes[name] for name in (
      "value", "key", "query")}, 1) for end in ("", "_bias")]
  return [("feed_forward", {"gate": 1, "up": 1}, 1), ("mamba", sizes, 1),
          *convolutions]
