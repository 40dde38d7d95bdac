"""Metadata of GGUF files as the fields of a Hugging Face `config.json`.

Each key of the architecture is read, known to be irrelevant, or refused.
"""

import pathlib

import numpy as np

from models.folders import json_files
from models.gguf import architectures
from models.gguf import files

# Of the architecture's keys, those for training or for display, and those that
# only say again what tensors tell; and keys that may have one value only.
_HARMLESS = frozenset("""
    attention.value_length expert_shared_count rope.scaling.finetuned
    tensor_data_layout
    """.split())
_ONLY = {
    "attention.causal": True, "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0, "expert_gating_func": 1,
    "expert_group_count": 0, "expert_weights_scale": 1.0,
    "leading_dense_block_count": 0, "pooling_type": 0,
    "rope.scaling.attn_factor": 1.0, "rope.scaling.yarn_log_multiplier": 0.0}
_SCALING = "rope.scaling."
_ORIGINAL = "original_max_position_embeddings"
# Of tensors that scale the wavelengths of each channel.
_FACTORS, _SHORT, _LONG = (f"{name}.weight" for name in (
    "rope_freqs", "rope_factors_short", "rope_factors_long"))
ROPE_TENSORS = frozenset((_FACTORS, _SHORT, _LONG))
# The largest of Gemma 2 and 3 divide scores by the root of dim / heads, which
# llama.cpp knows from their numbers of layers.
_WIDE_SCORES = {"gemma2": 46, "gemma3": 62}
_TYPES = {"BF16": "bfloat16", "F16": "float16"}


def fields(path) -> dict:
  """Reads what `config.json` would have, had the folder been kept. Raises
  ValueError naming the file and a key that is missing, unknown, or has a value
  that is not supported."""
  file = files.read(path)
  prefix, row = architectures.of(path, file.metadata)
  with json_files.naming(pathlib.Path(path)):
    return _fields(file, prefix, row)


def _fields(file, prefix, row):
  given = {key.removeprefix(f"{prefix}."): _single(key, value)
           for key, value in file.metadata.items()
           if key.startswith(f"{prefix}.")}
  keys = {**architectures.KEYS, **row.keys}
  needed = [key for key in ("context_length", "embedding_length", "block_count",
                            "attention.head_count") if key not in given]
  if needed:
    raise ValueError(f"{prefix}.{needed[0]} must be given.")
  # Without a key llama.cpp takes no family's default of transformers.
  fields = {"model_type": row.family, "num_key_value_heads": None,
            "head_dim": None, "sliding_window": None, **row.fixed}
  if row.family != "gpt2":
    fields[keys["rope.freq_base"]] = 10000.0
  for key, name in keys.items():
    value = given.pop(key, None)
    if name and value is not None:
      fields[name] = value
  heads = fields.get("num_attention_heads", fields.get("n_head"))
  width = fields.get("hidden_size", fields.get("n_embd"))
  for name, value in (("attention.head_count", heads),
                      ("embedding_length", width)):
    if type(value) is not int or value < 1:
      raise ValueError(f"{prefix}.{name}={json_files.shown(value)}: a positive "
                       "integer is needed.")
  head_dim = fields.get("head_dim") or width // heads
  length = given.get("attention.value_length", head_dim)
  if length != head_dim:
    raise ValueError(f"{prefix}.attention.value_length={length}: that of keys, "
                     f"{head_dim}, is needed.")
  fields |= _rotation(file, given, prefix, row, fields, head_dim)
  fields |= _of_tensors(file, row)
  if prefix.startswith("gemma"):
    fields["head_dim"] = head_dim
  if prefix in _WIDE_SCORES:
    wide = fields["num_hidden_layers"] == _WIDE_SCORES[prefix]
    fields["query_pre_attn_scalar"] = width // heads if wide else head_dim
  if prefix == "gemma2":
    fields["sliding_window"] = fields["sliding_window"] or 4096
  _check_rest(given, prefix)
  return fields


def _single(key, value):
  """Returns a number; one for each layer, if all are equal, as one."""
  if isinstance(value, np.ndarray):
    if value.size and (value == value[0]).all():
      return value[0].item()
    raise ValueError(f"{key}={json_files.shown(value.tolist())}: layers that "
                     "differ are not supported.")
  return value


def _rotation(file, given, prefix, row, fields, head_dim):
  rotary = {}
  channels = given.pop("rope.dimension_count", head_dim)
  if row.partial:
    rotary[row.partial] = channels / head_dim
  elif channels != head_dim:
    raise ValueError(f"{prefix}.rope.dimension_count={channels} is not "
                     f"supported; {head_dim}, all channels, is.")
  factors = {name: file.tensors[name].read().tolist()
             for name in sorted(ROPE_TENSORS) if name in file.tensors}
  scaling = _scaling(given, prefix, fields, factors)
  if scaling:
    rotary["rope_scaling"] = scaling
  if row.family == "phi3" and _ORIGINAL in scaling:
    rotary[_ORIGINAL] = scaling[_ORIGINAL]  # Where it looks for it.
  return rotary


def _scaling(given, prefix, fields, factors):
  """Reads keys and tensors of the scaling as `rope_scaling` has them."""
  type_ = given.pop(f"{_SCALING}type", "none")
  factor = given.pop(f"{_SCALING}factor", None)
  # Of old files.
  factor = given.pop("rope.scale_linear", factor)
  original = given.pop(f"{_SCALING}original_context_length",
                       fields.get("max_position_embeddings"))
  if type_ == "none" and factors:
    type_ = "longrope"
  elif type_ == "none" and factor not in (None, 1.0):
    type_ = "linear"
  if type_ not in ("none", "linear", "yarn", "longrope"):
    raise ValueError(f"{prefix}.{_SCALING}type={type_!r} is not one of linear, "
                     "longrope, none, yarn.")
  if (type_ == "longrope") != bool(factors):
    raise ValueError(f"{prefix}.{_SCALING}type={type_!r} with the tensors "
                     f"{', '.join(factors) or '(none)'} is not supported.")
  if type_ == "longrope":
    return _longrope(given, original, factors)
  return {"none": {},
          "linear": {"rope_type": "linear", "factor": factor or 1.0},
          "yarn": {"rope_type": "yarn", "factor": factor or 1.0,
                   _ORIGINAL: original}}[type_]


def _longrope(given, original, factors):
  """Returns the scaling of each wavelength by a factor of its own."""
  short, long = (factors.get(name, factors.get(_FACTORS))
                 for name in (_SHORT, _LONG))
  if not short or not long:
    raise ValueError(f"tensors {_SHORT} and {_LONG} must both be given.")
  scaling = {"rope_type": "longrope", "short_factor": short,
             "long_factor": long, _ORIGINAL: original}
  if _FACTORS in factors:
    # The same for all texts: wavelengths as Llama 3.1 scales them.
    return {**scaling, "attention_factor": 1.0}
  gain = given.pop(f"{_SCALING}attn_factor", None)
  return scaling if gain is None else {**scaling, "attention_factor": gain}


def _of_tensors(file, row):
  """Reads what tensors alone tell: vocabulary, type, biases, tied heads."""
  if "token_embd.weight" not in file.tensors:
    raise ValueError("tensor token_embd.weight is missing.")
  types = {x.ggml_type for name, x in file.tensors.items()
           if len(x.shape) > 1 and name not in ROPE_TENSORS}
  fields = {"vocab_size": file.tensors["token_embd.weight"].shape[0],
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "torch_dtype": (_TYPES.get(*types, "float32") if len(types) == 1
                            else "float32")}
  biases = {"attention_bias": "blk.0.attn_q.bias",
            "mlp_bias": "blk.0.ffn_up.bias"}
  if row.family in ("llama", "smollm3", "granite"):
    fields |= {name: tensor in file.tensors for name, tensor in biases.items()}
  return fields


def _check_rest(given, prefix):
  """Raises an error for a key that may change what a model computes."""
  for key, value in sorted(given.items()):
    if key in _ONLY and value == _ONLY[key] or key in _HARMLESS:
      continue
    allowed = f"; {_ONLY[key]!r} is" if key in _ONLY else ""
    raise ValueError(f"{prefix}.{key}={json_files.shown(value)} is not "
                     f"supported{allowed}.")
