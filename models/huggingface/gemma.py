"""The fields of `config.json` that Gemma 1, 2 and 3 have."""

from models.huggingface import config_fields
from models.huggingface import layer_types
from models.huggingface import rope as hf_rope

_take = config_fields.take
_GELU = "gelu_pytorch_tanh"
# One in this many layers sees all positions, which no field says.
_PATTERN = {"gemma2": 2, "gemma3_text": 6}
_PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern")
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_DEFAULT_CAPS = {"gemma2": (50.0, 30.0), "gemma3_text": (None, None)}
_LOCAL = "rope_local_base_freq"
_THETA, _LOCAL_THETA = 1000000.0, 10000.0
# Models with images say little about their text.
TEXT = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216,
    "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256, "sliding_window": 4096}
IMAGES = frozenset("""
    boi_token_id boi_token_index eoi_token_id eoi_token_index image_token_id
    image_token_index mm_tokens_per_image vision_config
    """.split())


def parse(fields, family, common):
  """Reads what Gemma has; see `llama.parse`."""
  # Google's first files have "gelu", and mean the approximation.
  config_fields.take_one_of(fields, "hidden_act", family, (_GELU, "gelu"))
  config_fields.take_one_of(fields, "hidden_activation", family, (_GELU,))
  config_fields.take_one_of(fields, "use_bidirectional_attention", family,
                            (False,))
  given = {
      "num_kv_heads": _take(fields, "num_key_value_heads"),
      "head_dim": _take(fields, "head_dim", 256),
      "hidden_dim": _take(fields, "intermediate_size"),
      "norm": "rms_plus_one", "feed_forward": "geglu",
      **config_fields.attention_and_norms(fields, tied=True),
      "embedding_scale": common["dim"]**0.5}
  if family != "gemma":
    scalar = _take(fields, "query_pre_attn_scalar")
    given |= {"sandwich_norm": True, "qk_norm": family == "gemma3_text",
              "query_scalar": 0 if scalar == given["head_dim"] else scalar,
              **_caps(fields, family),
              **_windows(fields, family, common["num_layers"])}
  if family != "gemma3_text":
    return given | hf_rope.parse(fields, common["max_length"])
  return given | layer_types.two_ropes(
      fields, common["max_length"], _take(fields, "rope_theta", _THETA),
      _take(fields, _LOCAL, _LOCAL_THETA))


def own_fields(config):
  """Returns what `parse` reads of an architecture, as far as they go."""
  own = {**config_fields.own_attention_and_norms(config), "hidden_act": _GELU,
         "hidden_activation": _GELU, "intermediate_size": config.hidden_dim,
         **hf_rope.own_fields(config)}
  if config.family == "gemma":
    return own
  caps = config.attention_softcap, config.logit_softcap
  scalar = config.query_scalar or config.head_dim
  own |= {"query_pre_attn_scalar": int(scalar) if scalar % 1 == 0 else scalar,
          **layer_types.own_windows(config),
          **{cap: value or None for cap, value in zip(_CAPS, caps)}}
  if config.family == "gemma3_text":
    # For transformers that do not know `layer_types` yet.
    own[_PATTERNS[0]] = ((config.full_every or config.num_layers + 1)
                         if config.window else 1)
    own[_LOCAL] = config.rope_local_theta or config.rope_theta
  return own


def _caps(fields, family):
  """Reads caps; null is no cap, an absent one is the family's."""
  for name, default in zip(_CAPS, _DEFAULT_CAPS[family]):
    fields.setdefault(name, default)
  if family == "gemma3_text":
    # Transformers leaves it out of the scores.
    config_fields.take_one_of(fields, _CAPS[0], family, (None,))
  return {name: _take(fields, cap, 0.0) for name, cap in
          zip(("attention_softcap", "logit_softcap"), _CAPS)}


def _windows(fields, family, num_layers):
  """Reads the window, and which layers see all positions nevertheless."""
  every = _PATTERN[family]
  for name in _PATTERNS:
    every = _take(fields, name, every)
  return layer_types.windows(fields, family, num_layers, every)
