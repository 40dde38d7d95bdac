"""Reads Llamas as transformers writes them, with numpy alone.

Servers build models of other engines from them: their environments have neither
JAX nor torch.
"""

import json
import pathlib

import numpy as np

_TYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def config(folder) -> dict:
  """Returns the fields of `config.json`; ValueError if no plain Llama."""
  fields = json.loads((pathlib.Path(folder) / "config.json").read_text("utf-8"))
  if fields["model_type"] != "llama" or fields.get("rope_scaling"):
    raise ValueError(f"'{folder}' is of the architecture "
                     f"{fields['model_type']!r}: only Llamas without scaled "
                     "rotary embeddings are built for this engine.")
  # Some files have the field without a value.
  fields["head_dim"] = fields.get("head_dim") or (
      fields["hidden_size"] // fields["num_attention_heads"])
  return fields


def tensors(folder) -> dict[str, np.ndarray]:
  """Returns all tensors in float32; of tied ones also "lm_head.weight"."""
  arrays = {}
  for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
    data = np.memmap(path, np.uint8, mode="r")
    size = 8 + int(data[:8].view(np.uint64)[0])
    header = json.loads(bytes(data[8:size]))
    header.pop("__metadata__", None)
    for name, about in header.items():
      start, end = (size + x for x in about["data_offsets"])
      x = np.frombuffer(bytes(data[start:end]), _TYPES[about["dtype"]])
      if about["dtype"] == "BF16":
        x = (x.astype(np.uint32) << 16).view(np.float32)
      arrays[name] = x.astype(np.float32).reshape(about["shape"])
  arrays.setdefault("lm_head.weight", arrays["model.embed_tokens.weight"])
  return arrays
