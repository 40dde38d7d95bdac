"""Writes GGUF files as llama.cpp's converter does, of tiny models."""

import numpy as np
import pytest

from models.folders import json_files
from models.huggingface import config as hf_config, tensor_files

gguf = pytest.importorskip("gguf", reason="needs pip install -e '.[gguf]'")

# What Hugging Face calls the keys, in the package's own words.
_SETTERS = {
    "vocab_size": "add_vocab_size",
    "max_position_embeddings": "add_context_length",
    "n_positions": "add_context_length",
    "hidden_size": "add_embedding_length", "n_embd": "add_embedding_length",
    "num_hidden_layers": "add_block_count", "n_layer": "add_block_count",
    "intermediate_size": "add_feed_forward_length",
    "n_inner": "add_feed_forward_length",
    "num_attention_heads": "add_head_count", "n_head": "add_head_count",
    "num_key_value_heads": "add_head_count_kv",
    "rms_norm_eps": "add_layer_norm_rms_eps",
    "layer_norm_eps": "add_layer_norm_eps",
    "layer_norm_epsilon": "add_layer_norm_eps",
    "norm_epsilon": "add_layer_norm_eps",
    "rope_theta": "add_rope_freq_base",
    "rotary_emb_base": "add_rope_freq_base",
    "num_experts": "add_expert_count", "num_local_experts": "add_expert_count",
    "num_experts_per_tok": "add_expert_used_count",
    "moe_intermediate_size": "add_expert_feed_forward_length",
    "shared_expert_intermediate_size": "add_expert_shared_feed_forward_length",
    "use_parallel_residual": "add_parallel_residual",
    "attn_logit_softcapping": "add_attn_logit_softcapping",
    "final_logit_softcapping": "add_final_logit_softcapping",
    "logits_scaling": "add_logit_scale",
    "attention_multiplier": "add_attention_scale",
    "embedding_multiplier": "add_embedding_scale",
    "residual_multiplier": "add_residual_scale"}
_WINDOWED = ("gemma2", "gemma3")
_PAIRED = ("llama", "granite", "smollm3")


def write(path, folder, arch, *, kind="F32", extra=(), rope=None, split=0):
  """Writes a Hugging Face folder as a file."""
  fields = json_files.read(folder / hf_config.FILE)
  writer = gguf.GGUFWriter(path, arch, split_max_tensors=split)
  for name, setter in _SETTERS.items():
    if fields.get(name) is not None:
      getattr(writer, setter)(fields[name])
  if arch in _WINDOWED:
    writer.add_sliding_window(fields["sliding_window"])
  heads = fields.get("num_attention_heads", fields.get("n_head"))
  if fields.get("head_dim"):
    writer.add_key_length(fields["head_dim"])
    writer.add_value_length(fields["head_dim"])
  if "rotary_pct" in fields:
    width = fields["hidden_size"] // heads
    writer.add_rope_dimension_count(int(width * fields["rotary_pct"]))
  for setter, *args in extra:
    getattr(writer, setter)(*args)
  tensors = _tensors(folder, fields, arch, heads)
  for name, x in {**tensors, **(rope or {})}.items():
    quantized = gguf.GGMLQuantizationType[kind if x.ndim > 1 else "F32"]
    writer.add_tensor(name, gguf.quantize(x, quantized), raw_dtype=quantized)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()


def _tensors(folder, fields, arch, heads):
  """Returns arrays by the names of the package, in the converter's layouts."""
  kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
  layers = fields.get("num_hidden_layers", fields.get("n_layer"))
  names = gguf.get_tensor_name_map(kinds[arch], layers)
  result, experts = {}, {}
  for name, tensor in tensor_files.tensors(folder).items():
    x = tensor.read().astype(np.float32)
    stem, _, kind = name.rpartition(".")
    if ".experts." in stem:
      before, _, after = stem.partition(".experts.")
      number, _, matrix = after.partition(".")
      whole = names.get_name(f"{before}.experts.{matrix}")
      experts.setdefault(f"{whole}.{kind}", {})[int(number)] = x
      continue
    there = names.get_name(stem)
    assert there, name
    result[f"{there}.{kind}"] = _converted(x, stem, kind, fields, arch, heads)
  stacked = {name: np.stack([parts[i] for i in range(len(parts))])
             for name, parts in experts.items()}
  return result | stacked


def _converted(x, stem, kind, fields, arch, heads):
  part = stem.rpartition(".")[2]
  if arch in _PAIRED and part in ("q_proj", "k_proj"):
    if part == "k_proj":
      heads = fields["num_key_value_heads"]
    x = x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)
  if arch.startswith("gemma") and stem.endswith("norm"):
    x = x + 1
  if arch == "gpt2" and kind == "weight" and part.startswith("c_"):
    x = x.T
  if part == "query_key_value":
    x = x.reshape(heads, 3, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
  if part == "shared_expert_gate":
    x = x[0]
  return np.ascontiguousarray(x)
