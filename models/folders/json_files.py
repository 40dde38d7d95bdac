"""JSON that other people have written, read with types and ranges.

Whatever is wrong with a file is one `ValueError` that names it: text that is no
JSON, objects nested too deep, a field of another type, a number out of range.
"""

import contextlib
import json
import math
import pathlib
from typing import NamedTuple

# Bytes of a description of a model; the largest published ones have a few MB.
MAX_BYTES = 64 << 20
_MAX_DEPTH = 64
_SHOWN = 100
_POINTER = b"version https://git-lfs"
_NAMES = {int: "int", float: "float", bool: "bool", str: "str", list: "list",
          dict: "dict"}


class Field(NamedTuple):
  """The allowed type and range of a field."""
  # Type of JSON: bool, int, float, str, list or dict. An integer will do for a
  # float, but true and false are no numbers.
  type_: type
  least: float = -math.inf  # Smallest number, or number of items of a list
  # Largest number, or number of items of a list or characters of a text
  most: float = math.inf
  # What each item of a list, or value of a dict, is; None: anything
  items: "Field | None" = None


def read(path, max_bytes: int = MAX_BYTES) -> dict:
  """Reads a JSON object; raises ValueError naming the file if it is none."""
  path = pathlib.Path(path)
  try:
    with open(path, "rb") as f:
      text = f.read(max_bytes + 1)
  except FileNotFoundError:
    raise
  except OSError as e:
    raise ValueError(f"'{shortened(str(path))}' cannot be read: "
                     f"{e.strerror}.") from e
  if len(text) > max_bytes:
    raise ValueError(f"'{path}' has more than {max_bytes} bytes.")
  try:
    return parse(text)
  except ValueError as e:
    refuse_pointer(path)
    raise ValueError(f"'{path}' is not a JSON object: {e}") from e


@contextlib.contextmanager
def naming(path):
  """Puts the name of a file before the message of any ValueError."""
  try:
    yield
  except ValueError as e:
    raise ValueError(f"'{path}': {e}") from e


def refuse_pointer(path) -> None:
  """Raises ValueError for a pointer of Git LFS instead of a file."""
  with open(path, "rb") as f:
    if f.read(len(_POINTER)) == _POINTER:
      raise ValueError(f"'{path}' is a pointer of Git LFS: run git lfs pull in "
                       "its folder for the file itself.")


def parse(text: bytes) -> dict:
  try:
    value = json.loads(text.decode("utf-8"))
    _check_depth(value)
  except RecursionError as e:
    raise ValueError("it is nested too deep.") from e
  except ValueError as e:
    raise ValueError(f"{str(e).rstrip('.')}.") from e
  if not isinstance(value, dict):
    raise ValueError(f"{shown(value)} is of type {type(value).__name__}.")
  return value


def check(name: str, value, field: Field):
  """Returns a value, a float if the field is one; raises if not allowed."""
  type_ = field.type_
  if type_ is float and type(value) is int and abs(value) < 1 << 1000:
    value = float(value)
  if type(value) is not type_:
    raise ValueError(f"{name}={shown(value)}: a value of type {_NAMES[type_]} "
                     "is needed.")
  if type_ in (int, float) and not field.least <= value <= field.most or (
      type_ is float and not math.isfinite(value)):
    raise ValueError(f"{name}={shown(value)}: {_range(field)} is needed.")
  if type_ in (list, str) and not field.least <= len(value) <= field.most:
    what = "items" if type_ is list else "characters"
    raise ValueError(f"{name} has {len(value)} {what}: {_range(field)} is "
                     "needed.")
  if type_ is list and field.items:
    value = [check(f"{name}[{i}]", x, field.items) for i, x in enumerate(value)]
  if type_ is dict and field.items:
    value = {key: check(f"{name}.{shown(key)}", x, field.items)
             for key, x in value.items()}
  return value


def shown(value) -> str:
  """Returns a value as an error shows it: one line, shortened."""
  return shortened(_repr(value))


def shortened(text: str) -> str:
  """Returns a text in one line of bounded length."""
  text = " ".join(text[:8 * _SHOWN].split())
  return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _repr(value):
  try:
    return repr(value)
  except ValueError:  # Integers of thousands of digits have no decimal form.
    return f"an integer of {value.bit_length()} bits"


def _range(field):
  least, most = (int(x) if abs(x) < 1e15 and x == int(x) else x
                 for x in (field.least, field.most))
  if math.isinf(least):
    return f"at most {most}"
  return f"at least {least}" if math.isinf(most) else f"{least} to {most}"


def _check_depth(value):
  level, depth = [value], 0
  while level:
    depth += 1
    if depth > _MAX_DEPTH:
      raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
    level = [x for part in level if isinstance(part, (dict, list))
             for x in (part.values() if isinstance(part, dict) else part)]
