"""Reads GGUF files: metadata, and tensors one by one.

The layout is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The
header is parsed here, since it holds vocabularies of 262,144 tokens; the
package `gguf` decodes quantised types.
"""

import functools
import math
import mmap
import pathlib
import re
import struct
from typing import Any, Callable, NamedTuple

import numpy as np

from models.folders import json_files
from models.folders import resolve

_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_STRING, _ARRAY, _BOOL = 8, 9, 7
# Codes of the types of metadata, as numpy and `struct` spell them.
_SCALARS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4",
            6: "<f4", _BOOL: "<u1", 10: "<u8", 11: "<i8", 12: "<f8"}
_MAX_AXES, _MAX_NAME = 4, 1 << 10
_ALIGNMENT = "general.alignment"
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_MAX_SPLIT = 10_000
# A sixteenth of those that are dequantised at a time, at most.
_BLOCKS_AT_ONCE = 2048


class Entry(NamedTuple):
  """A tensor that has not been read yet."""
  path: pathlib.Path  # The file that holds it
  shape: tuple[int, ...]  # Of the tensor; the last axis is contiguous
  ggml_type: str  # Name of its type, such as "Q4_K"
  # `() -> numpy array` of that shape, in float32
  read: Callable[[], np.ndarray]
  # `(start, end) -> numpy array`, of a part of the first axis
  rows: Callable[[int, int], np.ndarray]
  refusal: str = ""  # Why it cannot be read; empty if it can
  # `() -> uint8 array [..., bytes]`, rows as they are in the file; or None
  raw: Callable[[], np.ndarray] | None = None


class File(NamedTuple):
  """The content of a file."""
  # Dict from keys to a number, bool, str, list of str or numpy array
  metadata: dict[str, Any]
  tensors: dict[str, Entry]  # Dict from names to `Entry`


def is_gguf(path) -> bool:
  """Returns whether a model is a file of this format, by its name."""
  path = pathlib.Path(path)
  return path.suffix == resolve.GGUF and path.is_file()


def read(path) -> File:
  """Reads metadata and descriptions of tensors, of all parts of a split file,
  named by its first part, "...-00001-of-0000N.gguf". Raises FileNotFoundError
  for a missing part, ValueError naming a file that is damaged, of another
  version or no first part, or without the package `gguf`."""
  path = pathlib.Path(path)
  try:
    about = path.stat()
    return _read(path, about.st_size, about.st_mtime_ns)
  except FileNotFoundError:
    raise
  except OSError as e:
    raise ValueError(f"'{path}' cannot be read: {e.strerror}.") from e


@functools.lru_cache(maxsize=4)
def _read(path, size, changed):
  """Reads a file once, unless it changes: tokenizer and weights are in it."""
  del size, changed
  file = _read_one(path)
  count = file.metadata.get("split.count", 0)
  if count in (0, 1):
    return file
  match = _SPLIT.fullmatch(path.name)
  number = file.metadata.get("split.no", 0)
  if number != 0 or not match or int(match[2]) != 1 or int(match[3]) != count:
    raise ValueError(
        f"'{path}' is part {number + 1} of {count}: the first one is needed, "
        f"with a name that ends in -00001-of-{count:05}{resolve.GGUF}.")
  if count > _MAX_SPLIT:
    raise ValueError(f"'{path}': split.count={count}: at most {_MAX_SPLIT} is "
                     "allowed.")
  tensors = dict(file.tensors)
  for i in range(2, count + 1):
    part = path.with_name(f"{match[1]}-{i:05}-of-{count:05}{resolve.GGUF}")
    if not part.is_file():
      raise FileNotFoundError(f"'{path}' has {count} parts, of which "
                              f"{part.name} is missing.")
    more = _read_one(part).tensors
    twice = sorted(more.keys() & tensors.keys())
    if twice:
      raise ValueError(f"'{part}': tensor {twice[0]} is in "
                       f"{tensors[twice[0]].path.name} too.")
    tensors |= more
  total = file.metadata.get("split.tensors.count", len(tensors))
  if total != len(tensors):
    raise ValueError(f"'{path}': its parts have {len(tensors)} tensors, not "
                     f"split.tensors.count={total}.")
  return File(file.metadata, tensors)


def _read_one(path):
  with open(path, "rb") as f:
    if f.read(4) != _MAGIC:
      json_files.refuse_pointer(path)
      raise ValueError(f"'{path}' is no GGUF file: it does not begin with "
                       f"{_MAGIC.decode()}.")
    with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as data:
      try:
        return _parse(path, data)
      except (struct.error, UnicodeDecodeError, IndexError) as e:
        raise ValueError(f"'{path}' is damaged: its header cannot be read: "
                         f"{e}.") from e


def _parse(path, data):
  version, = struct.unpack_from("<I", data, 4)
  if version not in _VERSIONS:
    raise ValueError(f"'{path}': version {json_files.shown(version)} of the "
                     f"format; {' and '.join(map(str, _VERSIONS))} are "
                     "supported, little endian.")
  cursor = _Cursor(path, data, 8)
  num_tensors, num_fields = cursor.scalar("<Q"), cursor.scalar("<Q")
  metadata = {}
  for _ in range(cursor.checked(num_fields)):
    key = cursor.text(_MAX_NAME)
    if key in metadata:
      raise ValueError(f"'{path}' is damaged: {json_files.shown(key)} is there "
                       "twice.")
    metadata[key] = cursor.value(cursor.scalar("<I"))
  described = {}
  for _ in range(cursor.checked(num_tensors)):
    name, axes = cursor.text(_MAX_NAME), cursor.scalar("<I")
    if not 1 <= axes <= _MAX_AXES or name in described:
      raise ValueError(f"'{path}' is damaged: tensor {json_files.shown(name)} "
                       f"is there twice or has {axes} axes.")
    shape = tuple(cursor.scalar("<Q") for _ in range(axes))[::-1]
    described[name] = shape, cursor.scalar("<I"), cursor.scalar("<Q")
  alignment = metadata.get(_ALIGNMENT, 32)
  if type(alignment) is not int or not 1 <= alignment <= 1 << 20:
    raise ValueError(f"'{path}': {_ALIGNMENT}={json_files.shown(alignment)}: 1 "
                     f"to {1 << 20} is needed.")
  start = -(-cursor.at // alignment) * alignment
  return File(metadata, {
      name: _entry(path, len(data), name, shape, ggml_type, start + offset)
      for name, (shape, ggml_type, offset) in described.items()})


class _Cursor:

  def __init__(self, path, data, at):
    self.path, self.data, self.at = path, data, at

  def checked(self, count):
    if count > len(self.data) - self.at:
      raise ValueError(f"'{self.path}' is damaged: it ends at byte "
                       f"{len(self.data)}, before {count} more.")
    return count

  def scalar(self, form):
    value, = struct.unpack_from(form, self.data, self.at)
    self.at += struct.calcsize(form)
    return value

  def text(self, most=json_files.MAX_BYTES):
    length = self.checked(self.scalar("<Q"))
    if length > most:
      raise ValueError(f"'{self.path}' is damaged: a text of {length} bytes; "
                       f"at most {most} are allowed.")
    self.at += length
    return self.data[self.at - length:self.at].decode("utf-8")

  def value(self, ggml_type):
    if ggml_type == _STRING:
      return self.text()
    if ggml_type == _ARRAY:
      return self.array()
    number = self.numbers(ggml_type, 1)[0]
    if number.dtype == np.float32:
      return float(str(number))  # As somebody wrote it: 1e-05.
    return bool(number) if ggml_type == _BOOL else number.item()

  def array(self):
    ggml_type, count = self.scalar("<I"), self.checked(self.scalar("<Q"))
    if ggml_type == _STRING:
      return [self.text() for _ in range(count)]
    return self.numbers(ggml_type, count)

  def numbers(self, ggml_type, count):
    if ggml_type not in _SCALARS:
      raise ValueError(f"'{self.path}' is damaged: no type {ggml_type} of "
                       "metadata exists, or it is no element of an array.")
    dtype = np.dtype(_SCALARS[ggml_type])
    size = self.checked(count * dtype.itemsize)
    self.at += size
    return np.frombuffer(self.data[self.at - size:self.at], dtype)


def _entry(path, size, name, shape, ggml_type, start):
  """Returns an `Entry` whose bytes begin at `start`."""
  kinds = _gguf(path).GGMLQuantizationType
  if ggml_type not in kinds.__members__.values():
    refusal = f"has type {ggml_type}, which the package gguf does not know."
    return Entry(path, shape, str(ggml_type), None, None, refusal)
  ggml_type = kinds(ggml_type)
  per_block, block_bytes = _gguf(path).GGML_QUANT_SIZES[ggml_type]
  if shape[-1] % per_block:
    raise ValueError(f"'{path}' is damaged: tensor {name} of shape {shape} has "
                     f"no whole blocks of {per_block}.")
  row = shape[-1] // per_block * block_bytes
  if start + math.prod(shape[:-1]) * row > size:
    raise ValueError(f"'{path}' is damaged: it ends at byte {size}, within "
                     f"tensor {name}.")
  if not _is_readable(ggml_type):
    return Entry(path, shape, ggml_type.name, None, None,
                 f"has type {ggml_type.name}, which the package gguf does not "
                 "dequantise.")

  def raw(first, last):
    sizes = (last - first, *shape[1:-1], row) if shape[1:] else (row,)
    skipped = first * math.prod(shape[1:-1]) * row if shape[1:] else 0
    held = np.fromfile(path, np.uint8, math.prod(sizes), offset=start + skipped)
    if held.size != math.prod(sizes):
      raise ValueError(f"'{path}' ends within tensor {name}.")
    return held.reshape(sizes)

  def rows(first, last):
    held = raw(first, last)
    # Blocks do not know of rows, and the package takes 16 rows at a time.
    per_row = math.gcd(held.size // block_bytes, _BLOCKS_AT_ONCE)
    return _gguf(path).dequantize(
        held.reshape(-1, per_row * block_bytes), ggml_type).reshape(
            *held.shape[:-1], shape[-1])

  return Entry(path, shape, ggml_type.name,
               functools.partial(rows, 0, shape[0]), rows,
               raw=functools.partial(raw, 0, shape[0]))


@functools.lru_cache(maxsize=None)
def _is_readable(ggml_type):
  """Returns whether the package turns a type into floats, by trying it."""
  gguf = _gguf("")
  if ggml_type.name.startswith(("I8", "I16", "I32", "I64", "F64")):
    return False
  try:
    block_bytes = gguf.GGML_QUANT_SIZES[ggml_type][1]
    gguf.dequantize(np.zeros((1, block_bytes), np.uint8), ggml_type)
    return True
  except NotImplementedError:
    return False


def _gguf(path):
  try:
    import gguf  # pylint: disable=import-outside-toplevel
  except ImportError as e:
    raise ValueError(f"'{path}' can only be read with the package gguf: pip "
                     "install 'decoding_jax[gguf]'.") from e
  return gguf
