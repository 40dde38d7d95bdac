"""Writes Llamas as GGUF files with a vocabulary of numbers.

Engines that read this format are fed token ids and give token ids, so that a
text of token i needs no more than a name for it, "t" and its number. The
tokenizer has no special tokens: none ends a text, and an engine
that suppresses the end of a text suppresses nothing.
"""

import os
import pathlib

import numpy as np

from experiments.rivals import llama_files
from models.huggingface import tensor_files

# Types of weights, and what the format calls them.
KINDS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16", "int8": "Q8_0",
         "int4": "Q4_0"}
# Fields of `config.json` and the setters of `gguf.GGUFWriter`.
_FIELDS = {
    "vocab_size": "add_vocab_size",
    "max_position_embeddings": "add_context_length",
    "hidden_size": "add_embedding_length",
    "num_hidden_layers": "add_block_count",
    "intermediate_size": "add_feed_forward_length",
    "num_attention_heads": "add_head_count",
    "num_key_value_heads": "add_head_count_kv",
    "rms_norm_eps": "add_layer_norm_rms_eps",
    "rope_theta": "add_rope_freq_base"}
_NORMAL = 1


def write(folder, path, weights) -> None:
  """Writes a Llama as a GGUF file; `weights` are a key of `KINDS`, but norms
  and matrices whose rows have no whole blocks of 32 are in float32.
  """
  fields = llama_files.config(folder)
  path = pathlib.Path(path)
  path.parent.mkdir(parents=True, exist_ok=True)
  unfinished = path.with_name(f".{path.name}.partial")
  gguf = _gguf()
  writer = gguf.GGUFWriter(unfinished, "llama")
  _add_metadata(writer, gguf, fields, KINDS[weights])
  names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA,
                                   fields["num_hidden_layers"])
  for name, tensor in tensor_files.tensors(folder).items():
    stem, _, suffix = name.rpartition(".")
    x = _paired(tensor.read().astype(np.float32), stem, fields)
    dtype = gguf.GGMLQuantizationType[_kind(x, KINDS[weights], gguf)]
    writer.add_tensor(f"{names.get_name(stem)}.{suffix}",
                      gguf.quantize(x, dtype), raw_dtype=dtype)
  writer.write_header_to_file()
  writer.write_kv_data_to_file()
  writer.write_tensors_to_file()
  writer.close()
  os.replace(unfinished, path)


def _add_metadata(writer, gguf, fields, dtype):
  for name, setter in _FIELDS.items():
    getattr(writer, setter)(fields[name])
  for setter in ("add_key_length", "add_value_length",
                 "add_rope_dimension_count"):
    getattr(writer, setter)(fields["head_dim"])
  writer.add_file_type(
      gguf.LlamaFileType["ALL_F32" if dtype == "F32" else f"MOSTLY_{dtype}"])
  count = fields["vocab_size"]
  writer.add_tokenizer_model("rwkv")
  writer.add_token_list([f"t{i}" for i in range(count)])
  writer.add_token_types([_NORMAL] * count)


def _paired(x, stem, fields):
  """Returns rows such that neighbours are rotated, as the format has them."""
  heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
  part = stem.rpartition(".")[2]
  if part not in heads:
    return np.ascontiguousarray(x)
  halves = x.reshape(fields[heads[part]], 2, -1, *x.shape[1:])
  return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(x.shape))


def _kind(x, dtype, gguf):
  block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype]][0]
  return "F32" if x.ndim < 2 or x.shape[-1] % block else dtype


def _gguf():
  try:
    import gguf  # pylint: disable=import-outside-toplevel
  except ImportError as e:
    raise ValueError("GGUF files are written by the package gguf: pip install "
                     "'decoding_jax[gguf]'.") from e
  return gguf
