"""Tensors of GGUF files by the names, and in the layouts, of Hugging Face."""

import re

import numpy as np

from models.gguf import architectures
from models.gguf import config
from models.gguf import files

_LAYER = re.compile(r"blk\.(\d+)\.([a-z0-9_]+)\.(weight|bias)")
# Whose rows have another order where neighbours are rotated.
_ROTATED = {"attn_q": "attention.head_count",
            "attn_k": "attention.head_count_kv"}
_SHARED_GATE = "ffn_gate_inp_shexp"


def tensors(path) -> dict[str, files.Entry]:
  """Opens all tensors of a file by Hugging Face's names. Names that no table
  has stay as in the file."""
  file = files.read(path)
  prefix, row = architectures.of(path, file.metadata)
  top = {**architectures.TOP, **row.top}
  names = {**architectures.NAMES, **row.names}
  renamed = {}
  for name, entry in file.tensors.items():
    if name in config.ROPE_TENSORS:
      continue  # Part of the architecture, see `config.fields`.
    match = _LAYER.fullmatch(name)
    part, _, leaf = name.rpartition(".")
    if match and match[2] in names:
      layer, part, leaf = match.groups()
      there = f"{row.layer.format(layer)}.{names[part]}.{leaf}"
    elif part in top:
      there = f"{top[part]}.{leaf}"
    else:
      renamed[name] = entry
      continue
    if "{}" in there:
      renamed |= {there.format(i): _expert(entry, i)
                  for i in range(entry.shape[0])}
    else:
      renamed[there] = _as_there(entry, part, leaf, prefix, row, file.metadata)
  return renamed


def _expert(entry, i):
  return _changed(entry, lambda x: x[0], entry.shape[1:],
                  lambda: entry.rows(i, i + 1))


def _as_there(entry, part, leaf, prefix, row, metadata):
  if row.norm_offset and part.endswith("norm"):
    return _changed(entry, lambda x: x - np.float32(row.norm_offset))
  if row.paired and part in _ROTATED:
    heads = _heads(prefix, metadata, _ROTATED[part])
    return _reordered(entry, lambda x: _halves(x, heads))
  if part in row.transposed and leaf == "weight":
    return _changed(entry, np.transpose, entry.shape[::-1])
  if part == row.fused_heads:
    heads = _heads(prefix, metadata, _ROTATED["attn_q"])
    # Query, key and value of each head are together there.
    return _reordered(entry, lambda x: x.reshape(
        3, heads, -1, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape))
  if part == _SHARED_GATE:
    return _changed(entry, lambda x: x.reshape(1, -1), (1, entry.shape[-1]))
  return entry


def _heads(prefix, metadata, key):
  every = metadata.get(f"{prefix}.{_ROTATED['attn_q']}")
  heads = metadata.get(f"{prefix}.{key}", every)
  return int(np.ravel(heads)[0])


def _halves(x, heads):
  """Returns rows with the two halves of a head rotated, not neighbours. Here
  row 2 i of a head and the one after it are the i-th pair; there they are rows
  i and head_dim / 2 + i."""
  pairs = x.reshape(heads, -1, 2, *x.shape[1:])
  return pairs.swapaxes(1, 2).reshape(x.shape)


def _reordered(entry, change):
  """Returns an entry whose rows are in another order, as bytes too."""
  return _changed(entry, change)._replace(
      raw=entry.raw and (lambda: change(entry.raw())))


def _changed(entry, change, shape=None, read=None):
  if entry.refusal:
    return entry
  read = read or entry.read
  return entry._replace(shape=shape or entry.shape, rows=None, raw=None,
                        read=lambda: change(read()))
