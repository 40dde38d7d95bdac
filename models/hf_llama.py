"""The fields of `config.json` that Llama, Mistral, Qwen2 and Qwen3 have."""

from models import hf_fields

_take = hf_fields.take


def parse(fields, family, common):
  """What these families have.

  Args:
    fields: dict, from which it is taken out.
    family: "llama", "mistral", "qwen2" or "qwen3".
    common: fields of `transformer.Config` that are known already.

  Returns:
    More fields of it.

  Raises:
    ValueError: naming a field that is wrong or not supported.
  """
  heads, head_dim = (_take(fields, name, int, None)
                     for name in ("num_key_value_heads", "head_dim"))
  attention_bias = _take(fields, "attention_bias", bool, False)
  return {
      "num_kv_heads": heads or common["num_heads"],
      "head_dim": head_dim or hf_fields.channels(common),
      "hidden_dim": _take(fields, "intermediate_size", int),
      "qkv_bias": attention_bias or family == "qwen2",
      "out_bias": attention_bias,
      "feed_forward_bias": _take(fields, "mlp_bias", bool, False),
      "qk_norm": family == "qwen3",
      "tie_embeddings": _take(fields, "tie_word_embeddings", bool, False),
      "norm_eps": _take(fields, "rms_norm_eps", float, 1e-6),
      "window": _window(fields, family, common),
      **hf_fields.take_rope(fields, common["max_length"])}


def own_fields(config):
  """An architecture as fields of `config.json`; what is lost is not told.

  Args:
    config: a `transformer.Config`.

  Returns:
    The name of the family, and its fields beside those that all have.
  """
  if config.qk_norm:
    family = "qwen3"
  elif config.qkv_bias and not config.out_bias:
    family = "qwen2"
  else:
    family = "mistral" if config.window else "llama"
  own = {"num_key_value_heads": config.num_kv_heads,
         "head_dim": config.head_dim, "hidden_act": "silu",
         "intermediate_size": config.hidden_dim,
         "rms_norm_eps": config.norm_eps, **hf_fields.rope_fields(config)}
  if config.window:
    own["sliding_window"] = config.window
  if family in ("llama", "qwen3"):
    own["attention_bias"] = config.bias or config.qkv_bias
  if family == "llama":
    own["mlp_bias"] = config.bias or config.feed_forward_bias
  if family.startswith("qwen"):
    own |= {"use_sliding_window": bool(config.window), "max_window_layers": 0}
  return family, own


def _window(fields, family, common):
  """The window of all layers; 0 where it would never be felt."""
  window = _take(fields, "sliding_window", int, None)
  layers = common["num_layers"]
  if family.startswith("qwen"):
    used = _take(fields, "use_sliding_window", bool, False)
    first = _take(fields, "max_window_layers", int, layers, least=0)
    sliding = [bool(used and window and i >= first) for i in range(layers)]
    types = [f"{'sliding' if x else 'full'}_attention" for x in sliding]
    types = _take(fields, "layer_types", list, types)
    if len(set(types)) != 1 or types[0] not in ("full_attention",
                                                "sliding_attention"):
      raise ValueError(f"layer_types={types!r}: only layers that are all "
                       "full_attention or all sliding_attention are supported.")
    if types[0] == "full_attention":
      return 0
    if not window:
      raise ValueError(f"layer_types={types!r}: sliding_window must be given.")
  elif family == "llama" and window is not None:
    raise ValueError(f"sliding_window={window} of llama is not supported.")
  return window if window and window < common["max_length"] else 0
