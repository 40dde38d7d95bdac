"""Reads and writes the tensors of Hugging Face folders one by one.

Safetensors files (https://huggingface.co/docs/safetensors) are not mapped, so
only the current tensor is in memory. An 8-bit matrix `x` has a tensor `x_scale`
of row scales, as int-quantized of compressed-tensors; float8 may have block
scales, see `block_scales`.
"""

import json
import math
import pathlib
from typing import Callable, NamedTuple

import ml_dtypes
import numpy as np

from models.folders import json_files
from models.gguf import blocks as gguf_blocks
from models.gguf import files as gguf_files
from models.gguf import tensors as gguf_tensors
from models.huggingface import block_scales

SAFETENSORS, TORCH = "model.safetensors", "pytorch_model.bin"
CONFIG = "config.json"
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16,
           "BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn,
           "I64": np.int64}
_EIGHT_BITS, SCALE = "I8", "_scale"
_LENGTH_BYTES = 8
# Bytes of a header, as the format's own library has it.
_MAX_HEADER = 100_000_000
_SIZE = json_files.Field(int, 0, 1 << 48)
_ENTRY = {"dtype": json_files.Field(str),
          "shape": json_files.Field(list, 0, 8, _SIZE),
          "data_offsets": json_files.Field(list, 2, 2, _SIZE)}
# Bytes of a name, on file systems of today.
_MAX_NAME = 255
# Of an index: the file of each tensor.
_NAMES = json_files.Field(dict, items=json_files.Field(str))


class Tensor(NamedTuple):
  """A tensor that has not been read yet. `read` gives a fresh array, `refusal`
  says why it cannot be read, else it is empty. A tensor of `eight_bits` is
  saved with a scale for each row. `stored` gives rows of bytes of a type of
  `gguf.blocks`."""
  path: pathlib.Path
  shape: tuple[int, ...]
  read: Callable[[], np.ndarray] | None
  refusal: str = ""
  integer: bool = False
  eight_bits: bool = False
  stored: tuple[str, Callable[[], np.ndarray]] | None = None


def tensors(folder) -> dict[str, Tensor]:
  """Opens all tensors of a folder or GGUF file by name; checks headers. Raises
  FileNotFoundError; and ValueError for a damaged file."""
  folder = pathlib.Path(folder)
  if gguf_files.is_gguf(folder):
    return {name: Tensor(x.path, x.shape, x.read, x.refusal,
                         stored=(x.ggml_type, x.raw) if x.raw
                         and x.ggml_type in gguf_blocks.TYPES else None)
            for name, x in gguf_tensors.tensors(folder).items()}
  for name, read in ((SAFETENSORS, _safetensors), (TORCH, _torch)):
    index = folder / f"{name}.index.json"
    if (folder / name).is_file() or index.is_file():
      return block_scales.dequantized(folder / CONFIG, read(folder / name) if (
          folder / name).is_file() else _sharded(index, read))
  raise FileNotFoundError(
      f"Checkpoint '{folder}': neither {SAFETENSORS} nor {TORCH} in it, in one "
      "piece or with an index.")


def of_file(path) -> dict[str, Tensor]:
  """Opens all tensors of one file, of safetensors or else of torch."""
  path = pathlib.Path(path)
  return (_safetensors if path.suffix == ".safetensors" else _torch)(path)


def write(path, shapes, dtype, read, types=None):
  """Writes a safetensors file, one tensor after the other. `shapes` has the
  shape of each name, `read` gives its array; `types` are for tensors that
  are not of `dtype`: int64, or int8 with a tensor of scales."""
  dtypes = {name: np.dtype((types or {}).get(name, dtype)) for name in shapes}
  codes = {np.dtype(dtype): code for code, dtype in
           {**_DTYPES, _EIGHT_BITS: np.int8}.items()}
  header, end = {"__metadata__": {"format": "pt"}}, 0
  for name, shape in shapes.items():
    start, end = end, end + math.prod(shape) * dtypes[name].itemsize
    header[name] = {"dtype": codes[dtypes[name]], "shape": list(shape),
                    "data_offsets": [start, end]}
  header = json.dumps(header).encode()
  # Readers map the file: the first tensor has to be aligned.
  header += b" " * (-len(header) % _LENGTH_BYTES)
  with open(path, "wb") as f:
    f.write(len(header).to_bytes(_LENGTH_BYTES, "little") + header)
    for name in shapes:
      f.write(np.ascontiguousarray(read(name), dtypes[name]).tobytes())


def _sharded(index, read):
  """Opens the tensors of the files that an index names."""
  try:
    names = json_files.check("weight_map",
                             json_files.read(index).get("weight_map"), _NAMES)
  except ValueError as e:
    raise ValueError(f"'{index}' is damaged: a weight_map is needed: {e}"
                     ) from e
  tensors = {}
  for file in sorted(set(names.values())):
    _check_inside(index, file)
    if not (index.parent / file).is_file():
      raise FileNotFoundError(f"'{index}' names {file}, which is missing.")
    more = read(index.parent / file)
    twice = sorted(more.keys() & tensors.keys())
    if twice:
      raise ValueError(f"'{index}': tensor {twice[0]} is in {file} and in "
                       f"{tensors[twice[0]].path.name}.")
    tensors |= more
  missing = sorted(set(names) - set(tensors))
  if missing:
    raise ValueError(f"'{index}': tensor {missing[0]} is not in "
                     f"{names[missing[0]]}.")
  return tensors


def _check_inside(index, file):
  """Raises an error if a file that an index names is not one of its folder."""
  folder = index.parent.resolve()
  # The cache of the Hugging Face hub has links to files next to its snapshots.
  blobs = (folder.parents[1] / "blobs" if folder.parent.name == "snapshots"
           else folder)
  try:
    inside = (file not in ("", ".", "..") and "\0" not in file
              and len(file.encode()) <= _MAX_NAME
              and pathlib.Path(file).name == file
              and (folder / file).resolve().parent in (folder, blobs))
  except OSError as e:
    raise ValueError(f"'{index}' names {json_files.shown(file)}: {e.strerror}."
                     ) from e
  if not inside:
    raise ValueError(f"'{index}' names {json_files.shown(file)}, which is not "
                     "a file of its folder.")


def _safetensors(path):
  try:
    json_files.refuse_pointer(path)
    return _read_header(path)
  except OSError as e:
    raise ValueError(f"'{path}' cannot be read: {e.strerror}.") from e


def _read_header(path):
  """Opens the tensors of a safetensors file."""
  size = path.stat().st_size
  with open(path, "rb") as f:
    length = int.from_bytes(f.read(_LENGTH_BYTES), "little")
    start = _LENGTH_BYTES + length
    if not 2 <= length <= size - _LENGTH_BYTES or length > _MAX_HEADER:
      raise ValueError(f"'{path}' is damaged: its header would have {length} "
                       f"bytes, and the file has {size}.")
    header = f.read(length)
  try:
    header = json_files.parse(header)
    header.pop("__metadata__", None)
    entries = {name: _described(name, entry) for name, entry in header.items()}
  except ValueError as e:
    raise ValueError(f"'{path}' is damaged: its header cannot be read: {e}"
                     ) from e
  end = 0
  for name, (_, _, first, last) in sorted(
      entries.items(), key=lambda entry: entry[1][2:]):
    if first != end:
      raise ValueError(f"'{path}' is damaged: tensor {name} begins at byte "
                       f"{first}, but the one before it ends at {end}.")
    end = last
  if start + end != size:
    raise ValueError(f"'{path}' is damaged: {size} bytes, but its header asks "
                     f"for {start + end}.")
  return {name: _entry(path, name, start, *entry, entries)
          for name, entry in entries.items()
          if not _is_scale(name, entries)}


def _is_scale(name, entries):
  """Tells whether an entry holds the scales of a matrix in 8 bits."""
  matrix = entries.get(name.removesuffix(SCALE))
  return name.endswith(SCALE) and matrix and matrix[0] == _EIGHT_BITS


def _described(name, entry):
  """Returns type, shape, first and last byte of an entry of a header."""
  entry = json_files.check(name, entry, json_files.Field(dict))
  checked = {field: json_files.check(f"{field} of {json_files.shown(name)}",
                                     entry.get(field), allowed)
             for field, allowed in _ENTRY.items()}
  return checked["dtype"], tuple(checked["shape"]), *checked["data_offsets"]


def _entry(path, name, start, dtype, shape, first, last, entries):
  """Returns a `Tensor` of a safetensors file."""
  if dtype == _EIGHT_BITS and f"{name}{SCALE}" in entries:
    return _scaled(path, name, start, entries)
  if dtype not in _DTYPES:
    return Tensor(path, shape, None, f"has type {dtype}; "
                  f"{', '.join(_DTYPES)} are supported.")
  read = _reader(path, name, _DTYPES[dtype], shape, start + first, last - first)
  return Tensor(path, shape, read, integer=dtype == "I64")


def _scaled(path, name, start, entries):
  """Returns a `Tensor` of a matrix in 8 bits times the scales of its rows."""
  _, shape, first, last = entries[name]
  scale = _entry(path, f"{name}{SCALE}", start, *entries[f"{name}{SCALE}"], {})
  if len(shape) != 2 or scale.shape not in ((shape[0], 1), shape[:1]):
    return Tensor(path, shape, None, f"of shape {shape} has 8 bits and scales "
                  f"of shape {scale.shape}: a scale for each row is needed.")
  if scale.refusal:
    return scale
  read = _reader(path, name, np.int8, shape, start + first, last - first)
  return Tensor(path, shape, lambda: (
      read() * scale.read().astype(np.float32).reshape(-1, 1)), eight_bits=True)


def _reader(path, name, dtype, shape, start, size):
  """Returns the function that reads an array of a file."""
  expected = math.prod(shape) * np.dtype(dtype).itemsize
  if size != expected:
    raise ValueError(f"'{path}' is damaged: tensor {name} of shape {shape} has "
                     f"{size} bytes, not {expected}.")

  def read():
    x = np.empty(shape, dtype)
    with open(path, "rb") as f:
      f.seek(start)
      got = f.readinto(x.reshape(-1).view(np.uint8))
    if got != size:
      raise ValueError(f"'{path}' ends within tensor {name}.")
    return x

  return read


def _torch(path):
  """Opens the tensors of a file that torch has written."""
  from models.huggingface import torch_files  # Few models need it.
  json_files.refuse_pointer(path)
  return {name: _stored(path, name, x)
          for name, x in torch_files.tensors(path).items()}


def _stored(path, name, x):
  """Returns a `Tensor` of a file of torch."""
  refusal = ""
  if x.dtype not in map(np.dtype, _DTYPES.values()):
    refusal = (f"has type {x.dtype}; {', '.join(_DTYPES)} are supported.")
  elif x.overlaps():
    refusal = f"of shape {x.shape} has overlapping strides {x.strides}."
  if refusal:
    return Tensor(path, x.shape, None, refusal)
  size = x.dtype.itemsize
  flat = _reader(path, name, x.dtype, (x.span,), x.start, x.span * size)
  return Tensor(path, x.shape, lambda: np.ascontiguousarray(
      np.lib.stride_tricks.as_strided(
          flat(), x.shape, [size * stride for stride in x.strides])
  ).reshape(x.shape), integer=x.dtype == np.int64)
