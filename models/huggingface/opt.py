"""The fields of `config.json` that OPT and GPT-2 have: learned positions."""

from models.huggingface import config_fields

# GELU by its tanh approximation.
_GELUS = ("gelu_new", "gelu_pytorch_tanh")
_take = config_fields.take


def parse(fields, family, common):
  """Reads what these families have; see `llama.parse`."""
  given = {
      "num_kv_heads": common["num_heads"],
      "head_dim": config_fields.channels(common),
      "norm": "layer", "positions": "learned",
      "tie_embeddings": _take(fields, "tie_word_embeddings", True)}
  return given | (_gpt2 if family == "gpt2" else _opt)(fields, common)


def own_fields(config):
  """Returns what `parse` reads of an architecture, as far as they go."""
  if config.family == "gpt2":
    return {"n_inner": config.hidden_dim, "activation_function": _GELUS[0],
            "layer_norm_epsilon": config.norm_eps}
  return {"ffn_dim": config.hidden_dim, "activation_function": "relu",
          "enable_bias": config.bias,
          "do_layer_norm_before": not config.post_norm,
          "word_embed_proj_dim": config.embedding_dim or config.dim}


def _opt(fields, common):
  config_fields.take_one_of(fields, "activation_function", "opt", ("relu",))
  width = _take(fields, "word_embed_proj_dim", None) or common["dim"]
  return {
      "hidden_dim": _take(fields, "ffn_dim"), "feed_forward": "relu",
      "bias": _take(fields, "enable_bias", True),
      "post_norm": not _take(fields, "do_layer_norm_before", True),
      "embedding_dim": width if width != common["dim"] else 0}


def _gpt2(fields, common):
  config_fields.take_one_of(fields, "activation_function", "gpt2", _GELUS)
  config_fields.take_one_of(fields, "n_ctx", "gpt2", (common["max_length"],))
  hidden = _take(fields, "n_inner", None)
  return {
      "hidden_dim": hidden or 4 * common["dim"], "feed_forward": "gelu",
      "bias": True,
      "norm_eps": _take(fields, "layer_norm_epsilon", 1e-5)}
