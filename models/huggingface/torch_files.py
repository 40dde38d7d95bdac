"""Finds the tensors of files of `torch.save`, without torch.

Such a file is an uncompressed ZIP archive: `data.pkl`, a pickled dict of
tensors, and `data/<key>` for each storage. Since a pickle may call any Python
function, this interpreter makes only dicts, lists, tuples, texts and numbers,
knows the names below, and refuses all others.
"""

import functools
import pickletools
import struct
import zipfile
from typing import Callable, NamedTuple

import ml_dtypes
import numpy as np

from models.folders import json_files

_PICKLE, _BYTE_ORDER, _DATA = "data.pkl", "byteorder", "data/"
# Bytes of a pickle, which has about 300 for each tensor.
_MAX_PICKLE = 8 << 20
# Of each file in the archive: a mark and a header, which ends with the lengths
# of two fields before the bytes.
_ENTRY, _LOCAL_HEADER = b"PK\3\4", 30
_BEFORE_ZIP = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_STORAGES = {
    f"torch {name}Storage": np.dtype(dtype) for name, dtype in (
        ("Double", np.float64), ("Float", np.float32), ("Half", np.float16),
        ("BFloat16", ml_dtypes.bfloat16), ("Long", np.int64), ("Int", np.int32),
        ("Short", np.int16), ("Char", np.int8), ("Byte", np.uint8),
        ("Bool", np.bool_))}
_SIZE = json_files.Field(int, 0, 1 << 48)
_MAX_AXES = 8


class StoredTensor(NamedTuple):
  """The numbers of a tensor in a file, from the byte `start` on. `strides` and
  `span` count numbers; a span includes first and last element."""
  dtype: np.dtype
  shape: tuple[int, ...]
  strides: tuple[int, ...]
  start: int
  span: int

  def overlaps(self) -> bool:
    """Returns whether elements may share numbers, as expanded ones do."""
    span = 1
    for stride, size in sorted(zip(self.strides, self.shape)):
      if size > 1 and stride < span:
        return 0 not in self.shape
      span += stride * (size - 1)
    return False


class _Global(NamedTuple):
  """A name that a pickle asks for."""
  name: str


class _Storage(NamedTuple):
  """Numbers that tensors share: their type, first byte and count."""
  dtype: np.dtype
  start: int
  count: int


class _Machine(NamedTuple):
  """The state of an interpreter of pickles. `marks` are sizes of the stack at
  each mark, `memo` has values by number, and `locate` is `key -> (first byte,
  bytes)` of a storage."""
  stack: list
  marks: list[int]
  memo: dict
  locate: Callable[[str], tuple[int, int]]


def tensors(path) -> dict[str, StoredTensor]:
  """Finds the tensors of a file by name; ValueError if it asks for more."""
  try:
    with open(path, "rb") as f:
      if f.read(len(_BEFORE_ZIP)) == _BEFORE_ZIP:
        raise ValueError("it has the format of torch before 1.6: load and save "
                         "it again with a newer torch.")
      f.seek(0)
      return _named(_unpickled(*_opened(f)))
  except (OSError, ValueError, NotImplementedError, OverflowError, struct.error,
          zipfile.BadZipFile) as e:
    raise ValueError(f"'{path}' cannot be read: {e}") from e


def _opened(f):
  """Returns the pickle of an archive, and a function that finds storages."""
  with zipfile.ZipFile(f) as archive:
    files = {x.filename: x for x in archive.infolist()}
    pickles = [name for name in files if name.endswith(f"/{_PICKLE}")]
    if len(files) != len(archive.infolist()) or len(pickles) != 1:
      raise ValueError(f"one {_PICKLE}, and different names, are needed.")
    folder = pickles[0].removesuffix(_PICKLE)

    def read(name, most):
      start, size = _locate(f, files[folder + name])
      if size > most:
        raise ValueError(f"{name} has {size} bytes: at most {most} are read.")
      f.seek(start)
      return f.read(size)

    order = read(_BYTE_ORDER, 16) if folder + _BYTE_ORDER in files else b""
    if order not in (b"", b"little"):
      raise ValueError(f"byte order {json_files.shown(order)}: little is "
                       "supported.")

    def locate(key):
      name = f"{folder}{_DATA}{key}"
      if name not in files:
        raise ValueError(f"{json_files.shown(_DATA + key)} is missing.")
      return _locate(f, files[name])

    return read(_PICKLE, _MAX_PICKLE), locate


def _locate(f, entry):
  """Returns where the bytes of a file in an archive are, and how many."""
  name = json_files.shown(entry.filename)
  if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1 or (
      entry.compress_size != entry.file_size):
    raise ValueError(f"{name} is compressed or encrypted.")
  f.seek(entry.header_offset)
  header = f.read(_LOCAL_HEADER)
  if len(header) < _LOCAL_HEADER or header[:4] != _ENTRY:
    raise ValueError(f"{name} has no header.")
  start = entry.header_offset + _LOCAL_HEADER + sum(
      struct.unpack("<HH", header[-4:]))
  if start + entry.file_size > f.seek(0, 2):
    raise ValueError(f"it ends within {name}.")
  return start, entry.file_size


def _named(value):
  """Returns the tensors of a dict; raises `ValueError` for anything else."""
  if type(value) is not dict:
    raise ValueError(f"it holds a value of type {type(value).__name__}, not a "
                     "dict of tensors.")
  for name, x in value.items():
    if type(name) is not str or type(x) is not StoredTensor:
      raise ValueError(f"{json_files.shown(name)} is of type "
                       f"{type(x).__name__}, no tensor.")
  return value


def _unpickled(data, locate):
  """Returns the value of a pickle; `locate` gives a storage's bytes."""
  machine = _Machine([], [], {}, functools.cache(locate))
  try:
    for opcode, argument, _ in pickletools.genops(data):
      if opcode.name not in _STEPS:
        raise ValueError(f"{_PICKLE} has the instruction {opcode.name}, which "
                         "tensors do not need.")
      _STEPS[opcode.name](machine, argument)
    [value] = machine.stack
  except (IndexError, KeyError, TypeError) as e:
    raise ValueError(f"{_PICKLE} is damaged.") from e
  return value


def _pop(machine, count):
  """Takes the last values of the stack."""
  return [machine.stack.pop() for _ in range(count)][::-1]


def _since_mark(machine):
  """Takes the values of the stack since the last mark."""
  start = machine.marks.pop()
  items = machine.stack[start:]
  del machine.stack[start:]
  return items


def _remember(machine, number):
  machine.memo[number] = machine.stack[-1]


def _extend(machine, items):
  """Adds items to the list that is the last value."""
  _of_type(list, machine.stack[-1]).extend(items)


def _update(machine, items):
  """Adds keys and values to the dict that is the last value."""
  values = _of_type(dict, machine.stack[-1])
  for i in range(0, len(items), 2):
    # A tuple of tuples could be nested too deep to hash.
    values[_of_type((str, int), items[i])] = items[i + 1]


def _build(machine, _):
  """Drops the attributes of a dict, such as the versions of modules."""
  machine.stack.pop()
  _of_type(dict, machine.stack[-1])


def _call(machine, _):
  call, arguments = _pop(machine, 2)
  machine.stack.append(_CALLS[_of_type(_Global, call).name](
      *_of_type(tuple, arguments)))


def _load_storage(machine, _):
  """Loads a storage; its file has to have just as many numbers."""
  tag, storage, key, _, count = _of_type(tuple, machine.stack.pop())
  dtype = _STORAGES.get(_of_type(_Global, storage).name)
  if tag != "storage" or dtype is None:
    raise ValueError(f"{_PICKLE} asks for a storage {storage.name}.")
  start, size = machine.locate(_of_type(str, key))
  if size != _size("numel", count) * dtype.itemsize:
    raise ValueError(f"{json_files.shown(_DATA + key)} has {size} bytes, not "
                     f"{count} numbers of {dtype.itemsize}.")
  machine.stack.append(_Storage(dtype, start, count))


def _of_type(types, value):
  """Returns a value; raises `TypeError` unless it is of one of the types."""
  if not isinstance(value, types):
    raise TypeError(type(value).__name__)
  return value


def _size(name, value) -> int:
  """Returns a number that is a size; its type is checked before it is shown."""
  return json_files.check(name, _of_type(int, value), _SIZE)


def _global(name):
  """Returns a name that a pickle of tensors asks for, and refuses others."""
  if name not in _STORAGES and name not in _CALLS:
    raise ValueError(f"{_PICKLE} asks for {json_files.shown(name)}, which is "
                     "no part of a tensor.")
  return _Global(name)


def _tensor(storage, offset, shape, strides, *_):
  """Returns a tensor whose elements are all within its storage."""
  storage = _of_type(_Storage, storage)
  offset = _size("storage_offset", offset)
  shape, strides = (
      tuple(_size(name, x) for x in _of_type(tuple, sizes))
      for name, sizes in (("size", shape), ("stride", strides)))
  if len(shape) != len(strides) or len(shape) > _MAX_AXES:
    raise ValueError(f"a tensor has {len(shape)} sizes and {len(strides)} "
                     f"strides: as many, at most {_MAX_AXES}, are needed.")
  span = 0 if 0 in shape else 1 + sum(
      (size - 1) * stride for size, stride in zip(shape, strides))
  if offset + span > storage.count:
    raise ValueError(f"a tensor of size {shape} and stride {strides} at "
                     f"{offset} is not within {storage.count} numbers.")
  return StoredTensor(storage.dtype, shape, strides, storage.start + offset
                      * storage.dtype.itemsize, span)


def _parameter(tensor, *_):
  return _of_type(StoredTensor, tensor)


def _push(make):
  """Returns an instruction that pushes `make(machine, argument)`."""
  return lambda machine, argument: machine.stack.append(make(machine, argument))


_CALLS = {"torch._utils _rebuild_tensor_v2": _tensor,
          "torch._utils _rebuild_parameter": _parameter,
          "collections OrderedDict": lambda: {}}
# By name of an instruction, `(machine, argument) -> None`.
_STEPS = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), lambda *_: None),
    **dict.fromkeys(("BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1",
                     "BININT2", "LONG1", "BINFLOAT"), _push(lambda _, x: x)),
    "NONE": _push(lambda *_: None),
    "NEWTRUE": _push(lambda *_: True),
    "NEWFALSE": _push(lambda *_: False),
    "EMPTY_DICT": _push(lambda *_: {}),
    "EMPTY_LIST": _push(lambda *_: []),
    "EMPTY_TUPLE": _push(lambda *_: ()),
    "TUPLE1": _push(lambda machine, _: tuple(_pop(machine, 1))),
    "TUPLE2": _push(lambda machine, _: tuple(_pop(machine, 2))),
    "TUPLE3": _push(lambda machine, _: tuple(_pop(machine, 3))),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "TUPLE": _push(lambda machine, _: tuple(_since_mark(machine))),
    "BINPUT": _remember,
    "LONG_BINPUT": _remember,
    "MEMOIZE": lambda machine, _: _remember(machine, len(machine.memo)),
    "BINGET": _push(lambda machine, number: machine.memo[number]),
    "LONG_BINGET": _push(lambda machine, number: machine.memo[number]),
    "APPEND": lambda machine, _: _extend(machine, _pop(machine, 1)),
    "APPENDS": lambda machine, _: _extend(machine, _since_mark(machine)),
    "SETITEM": lambda machine, _: _update(machine, _pop(machine, 2)),
    "SETITEMS": lambda machine, _: _update(machine, _since_mark(machine)),
    "BUILD": _build,
    "GLOBAL": _push(lambda _, name: _global(name)),
    "STACK_GLOBAL": _push(lambda machine, _: _global(" ".join(
        _pop(machine, 2)))),
    "BINPERSID": _load_storage,
    "REDUCE": _call,
}
