"""`config.json` of Hugging Face folders, read and written.

Every field is either understood, or known not to change what the model
computes, or refused by its name: a checkpoint that loads is the checkpoint.
"""

import dataclasses
import json
import pathlib

from models import transformer

FILE = "config.json"
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "opt": "OPTForCausalLM"}

# For training, for generation, for other libraries, or just notes.
_HARMLESS = frozenset("""
    _attn_implementation_autoset _flash_attn_2_enabled _name_or_path
    activation_dropout attention_dropout bos_token_id do_sample dropout
    embd_pdrop eos_token_id gradient_checkpointing id2label init_std
    initializer_range label2id layerdrop max_length max_sequence_length
    name_or_path output_attentions output_hidden_states output_past
    pad_token_id prefix pretraining_tp resid_pdrop return_dict
    task_specific_params temperature torchscript top_k top_p
    transformers_version unsloth_fixed unsloth_version use_cache
    """.split())
# These change the computation, unless they have this value.
_ONLY = {
    "_remove_final_layer_norm": False, "activation_function": "relu",
    "add_cross_attention": False, "chunk_size_feed_forward": 0,
    "cross_attention_hidden_size": None, "hidden_act": "silu",
    "is_decoder": False, "is_encoder_decoder": False,
    "layer_norm_elementwise_affine": True, "pruned_heads": {},
    "quantization_config": None, "rope_interleaved": False,
    "tie_encoder_decoder": False, "use_bfloat16": False, "use_mrope": False}
# Parameters that each scaling of the rotary embedding has, beside its name.
_ORIGINAL = "original_max_position_embeddings"
_SCALINGS = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", _ORIGINAL)}
# And what `transformer.Config` calls them.
_ROPE_FIELDS = {
    "factor": "rope_factor", "low_freq_factor": "rope_low_turns",
    "high_freq_factor": "rope_high_turns", _ORIGINAL: "rope_original_length"}
_NO_DEFAULT = object()


def is_hf(folder) -> bool:
  """Whether a folder is as transformers writes it."""
  path = pathlib.Path(folder) / FILE
  return path.is_file() and "model_type" in _load(path)


def read(folder) -> transformer.Config:
  """The architecture that a folder describes.

  Args:
    folder: with a `config.json`, as written by transformers 4 or 5.

  Returns:
    A `transformer.Config` of unrolled layers.

  Raises:
    FileNotFoundError: if there is no such file.
    ValueError: naming a field and its value, if that is not supported.
  """
  path = pathlib.Path(folder) / FILE
  if not path.is_file():
    raise FileNotFoundError(f"Checkpoint '{folder}': no {FILE} in it.")
  fields = _load(path)
  try:
    return _parse(fields)
  except ValueError as e:
    raise ValueError(f"'{path}': {e}") from e


def _load(path):
  try:
    fields = json.loads(path.read_text("utf-8"))
  except ValueError as e:
    raise ValueError(f"'{path}' is not JSON: {e}.") from e
  if not isinstance(fields, dict):
    raise ValueError(f"'{path}': an object is needed.")
  return fields


def _parse(fields):
  """A `Config` of fields; what is understood is taken out of them."""
  fields = dict(fields)
  family = fields.pop("model_type", None)
  if family not in ARCHITECTURES:
    raise ValueError(f"model_type={family!r} is not one of "
                     f"{sorted(ARCHITECTURES)}.")
  architectures = fields.pop("architectures", None)
  if architectures not in (None, [ARCHITECTURES[family]]):
    raise ValueError(f"architectures={architectures!r} of {family}: "
                     f"[{ARCHITECTURES[family]!r}] is supported.")
  common = _common(fields)
  config = transformer.Config(
      **common, **(_opt if family == "opt" else _llama)(fields, family, common))
  for name, value in sorted(fields.items()):
    if name in _ONLY and _ONLY[name] != value:
      raise ValueError(f"{name}={value!r} of {family} is not supported; "
                       f"{_ONLY[name]!r} is.")
    if name not in _HARMLESS and name not in _ONLY:
      raise ValueError(f"{name}={value!r} of {family} is not supported.")
  return config


def _common(fields):
  """What all families have."""
  dtype = _take(fields, "torch_dtype", str, None)
  dtype = _take(fields, "dtype", str, dtype) or "float32"
  return {"vocab_size": _take(fields, "vocab_size", int),
          "dim": _take(fields, "hidden_size", int),
          "num_layers": _take(fields, "num_hidden_layers", int),
          "num_heads": _take(fields, "num_attention_heads", int),
          "max_length": _take(fields, "max_position_embeddings", int),
          "dtype": dtype.removeprefix("torch.")}


def _llama(fields, family, common):
  """What Llama, Mistral and Qwen have."""
  heads = common["num_heads"]
  attention_bias = _take(fields, "attention_bias", bool, False)
  return {
      "num_kv_heads": _take(fields, "num_key_value_heads", int, None) or heads,
      "head_dim": _take(fields, "head_dim", int, None) or _divide(common),
      "hidden_dim": _take(fields, "intermediate_size", int),
      "qkv_bias": attention_bias or family == "qwen2",
      "out_bias": attention_bias,
      "feed_forward_bias": _take(fields, "mlp_bias", bool, False),
      "qk_norm": family == "qwen3",
      "tie_embeddings": _take(fields, "tie_word_embeddings", bool, False),
      "norm_eps": _take(fields, "rms_norm_eps", float, 1e-6),
      "window": _window(fields, family, common),
      **_rope(fields, common["max_length"])}


def _opt(fields, family, common):
  """What OPT has."""
  del family
  width = _take(fields, "word_embed_proj_dim", int, None) or common["dim"]
  return {
      "num_kv_heads": common["num_heads"], "head_dim": _divide(common),
      "hidden_dim": _take(fields, "ffn_dim", int),
      "norm": "layer", "positions": "learned", "feed_forward": "relu",
      "bias": _take(fields, "enable_bias", bool, True),
      "tie_embeddings": _take(fields, "tie_word_embeddings", bool, True),
      "post_norm": not _take(fields, "do_layer_norm_before", bool, True),
      "embedding_dim": width if width != common["dim"] else 0}


def _divide(common):
  """Channels of a head, where they are not given."""
  if common["dim"] % common["num_heads"]:
    raise ValueError(f"num_attention_heads={common['num_heads']} does not "
                     f"divide hidden_size={common['dim']}.")
  return common["dim"] // common["num_heads"]


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


def _rope(fields, max_length):
  """The rotary embedding as transformers 4 or 5 describes it."""
  theta = _take(fields, "rope_theta", float, 10000.0)
  old = _take(fields, "rope_scaling", dict, None)
  new = _take(fields, "rope_parameters", dict, None)
  if old and new and old != new:
    raise ValueError(f"rope_scaling={old!r} contradicts rope_parameters="
                     f"{new!r}.")
  given = dict(new or old or {})
  kind = given.pop("type", "default")
  kind = given.pop("rope_type", kind)
  if kind not in _SCALINGS:
    raise ValueError(f"rope_type={kind!r} is not one of {sorted(_SCALINGS)}.")
  theta = _take(given, "rope_theta", float, theta)
  values = {name: _take(given, name, float, max_length if name == _ORIGINAL
                        else _NO_DEFAULT) for name in _SCALINGS[kind]}
  ignored = {"partial_rotary_factor": 1.0}
  if kind == "dynamic":
    ignored[_ORIGINAL] = max_length
  for name, value in given.items():
    if name not in ignored or ignored[name] != value:
      raise ValueError(f"{name}={value!r} of rope_type={kind!r} is not "
                       "supported.")
  return {"rope_theta": theta,
          "rope_scaling": "none" if kind == "default" else kind,
          **{_ROPE_FIELDS[name]: value for name, value in values.items()}}


def _take(fields, name, kind, default=_NO_DEFAULT, least=1):
  """Takes a field out, checked; null counts as absent."""
  value = fields.pop(name, None)
  if value is None:
    if default is _NO_DEFAULT:
      raise ValueError(f"{name} must be given.")
    return default
  if kind is float and type(value) is int:
    return float(value)
  if type(value) is not kind:
    raise ValueError(f"{name}={value!r}: a value of type {kind.__name__} is "
                     "needed.")
  if kind is int and value < least:
    raise ValueError(f"{name}={value}: at least {least} is needed.")
  return value


def fields(config: transformer.Config) -> dict:
  """An architecture as transformers 4 describes it; 5 reads that too.

  Args:
    config: any architecture.

  Returns:
    What belongs into `config.json`.

  Raises:
    ValueError: if no family has such an architecture.
  """
  write = _llama_fields if config.positions == "rope" else _opt_fields
  family, own = write(config)
  found = {"model_type": family, "architectures": [ARCHITECTURES[family]],
           "vocab_size": config.vocab_size, "hidden_size": config.dim,
           "num_hidden_layers": config.num_layers,
           "num_attention_heads": config.num_heads,
           "max_position_embeddings": config.max_length,
           "tie_word_embeddings": config.tie_embeddings,
           "torch_dtype": config.dtype, **own}
  # What has no place in these fields would be lost.
  given, again = _effective(config), _effective(_parse(found))
  for name, value in dataclasses.asdict(given).items():
    if value != getattr(again, name):
      raise ValueError(f"{name}={value!r} has no place in a Hugging Face model "
                       f"of type {family}; {getattr(again, name)!r} has.")
  return found


def _effective(config):
  """The architecture without what makes no difference to it."""
  biases = {name: config.bias or getattr(config, name)
            for name in ("qkv_bias", "out_bias", "feed_forward_bias")}
  kind = "default" if config.rope_scaling == "none" else config.rope_scaling
  unused = {name: 0.0 for field, name in _ROPE_FIELDS.items()
            if field not in _SCALINGS[kind]}
  if config.positions != "rope":
    unused["rope_theta"] = 0.0
  window = config.window if config.window < config.max_length else 0
  return dataclasses.replace(config, bias=False, scan_layers=False,
                             window=window, **biases, **unused)


def _llama_fields(config):
  if config.qk_norm:
    family = "qwen3"
  elif config.qkv_bias and not config.out_bias:
    family = "qwen2"
  else:
    family = "mistral" if config.window else "llama"
  own = {"num_key_value_heads": config.num_kv_heads,
         "head_dim": config.head_dim, "hidden_act": "silu",
         "intermediate_size": config.hidden_dim,
         "rms_norm_eps": config.norm_eps, "rope_theta": config.rope_theta}
  if config.rope_scaling != "none":
    own["rope_scaling"] = {"rope_type": config.rope_scaling, **{
        name: getattr(config, _ROPE_FIELDS[name])
        for name in _SCALINGS[config.rope_scaling]}}
  if config.window:
    own["sliding_window"] = config.window
  if family in ("llama", "qwen3"):
    own["attention_bias"] = config.bias or config.qkv_bias
  if family == "llama":
    own["mlp_bias"] = config.bias or config.feed_forward_bias
  if family.startswith("qwen"):
    own |= {"use_sliding_window": bool(config.window), "max_window_layers": 0}
  return family, own


def _opt_fields(config):
  return "opt", {
      "ffn_dim": config.hidden_dim, "activation_function": "relu",
      "enable_bias": config.bias,
      "do_layer_norm_before": not config.post_norm,
      "word_embed_proj_dim": config.embedding_dim or config.dim}
