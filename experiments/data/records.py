"""Reads records of a data set; errors name file, line and field."""

import gzip
import json
import pathlib
from typing import Any, NamedTuple

from decoding_jax.validation import values
from models.folders import hub


class Record(NamedTuple):
  """An example as read."""
  where: str  # file and line, for messages
  value: Any  # a JSON value


def load(data, dataset=None, by_line=False, name="data") -> list[Record]:
  """Reads all examples, at least one; a `ValueError` names file and line."""
  # `data` is a file: .jsonl, .json with a list, or any other, which is one
  # text, or `by_line` a text each; each may end with .gz. Or `hub:` and the
  # name of a data set, which replaces the path of `dataset`: `path`, `name` and
  # `split` for `datasets`. `name` is the field or flag of `data`.
  if data and not data.startswith(hub.PREFIX):
    try:
      loaded = _of_file(pathlib.Path(data), by_line)
    except OSError as e:
      raise ValueError(f"{name}={data}: {e.strerror}.") from e
  else:
    loaded = _of_hub(data.removeprefix(hub.PREFIX), dataset)
  if not loaded:
    raise ValueError(f"{name}={data!r} is empty: an example is needed.")
  return loaded


def field(record: Record, path: str) -> str:
  """Returns a text in a record; a list of texts is joined as lines."""
  # `path` has names, and numbers of list items, separated by dots; "" is the
  # whole record. Raises a `ValueError` that names file, line and field.
  value = find(record, path)
  if isinstance(value, list) and all(isinstance(x, str) for x in value):
    return "\n".join(value)
  if not isinstance(value, str):
    raise ValueError(f"{record.where}: field '{path}' is of type "
                     f"{type(value).__name__}: a text is needed.")
  return value


def texts(data, name="data", path="text") -> list[str]:
  """Returns the texts of a file, or of a field of its records; see `load`."""
  return [field(record, path if isinstance(record.value, dict) else "")
          for record in load(data, name=name)]


def find(record: Record, path: str) -> Any:
  """Returns the value at a path; arguments and errors as in `field`."""
  value = record.value
  for part in path.split(".") if path else ():
    try:
      value = value[int(part)] if isinstance(value, list) else value[part]
    except (KeyError, IndexError, TypeError, ValueError):
      raise ValueError(f"{record.where} has no field '{path}'; "
                       f"{contents(record.value)}.") from None
  return value


def has(record: Record, path: str) -> bool:
  """Returns whether a record has a text at a path."""
  try:
    field(record, path)
  except ValueError:
    return False
  return True


def contents(value) -> str:
  """Describes a value that lacks a field, for messages."""
  if isinstance(value, dict):
    return f"there are {', '.join(map(str, value)) or 'none'}"
  return f"it is of type {type(value).__name__}"


def _of_file(path, by_line):
  inner = pathlib.Path(path.stem) if path.suffix == ".gz" else path
  try:
    data = path.read_bytes()
    if path.suffix == ".gz":
      data = gzip.decompress(data)
    text = data.decode("utf-8-sig")
  except (EOFError, gzip.BadGzipFile, UnicodeDecodeError) as e:
    raise ValueError(f"'{path}' cannot be read: {e}.") from e
  if not text.strip():
    return []
  if inner.suffix == ".json":
    items = parsed(f"'{path}'", text).value
    if not isinstance(items, list):
      raise ValueError(f"'{path}' is of type {type(items).__name__}: a list "
                       "of examples is needed.")
    return [Record(f"'{path}', item {i}", value)
            for i, value in enumerate(items, 1)]
  if by_line or inner.suffix == ".jsonl":
    make = parsed if inner.suffix == ".jsonl" else Record
    # Not splitlines, which also splits at characters that JSON may contain.
    lines = text.replace("\r\n", "\n").split("\n")
    return [make(f"'{path}', line {i}", line)
            for i, line in enumerate(lines, 1) if line.strip()]
  return [Record(f"'{path}'", text)]


def parsed(where: str, text: str) -> Record:
  """Reads JSON; a `ValueError` names where it is."""
  try:
    value = json.loads(text)
  except ValueError as e:
    raise ValueError(f"{where} is not JSON: {e}.") from e
  # JSON can hold lone surrogates, which tokenizers refuse.
  values.utf8(where, json.dumps(value, ensure_ascii=False))
  return Record(where, value)


def _of_hub(path, dataset):
  if not path and not dataset:
    raise ValueError("data is empty, and the task has no data set of a "
                     f"registry: a file is needed, or '{hub.PREFIX}' and a "
                     "name.")
  try:
    import datasets  # pylint: disable=import-outside-toplevel
  except ImportError as e:
    raise ValueError("data sets by name need the package datasets: pip install "
                     "'decoding_jax[tasks]', or give the file in data.") from e
  options = dict(dataset or {"name": "", "split": "test"})
  path = path or options["path"]
  try:
    rows = datasets.load_dataset(path, options["name"] or None,
                                 split=options["split"])
  except Exception as e:  # It has errors of several libraries.
    raise ValueError(f"data set '{path}' cannot be loaded: {e}") from e
  return [Record(f"data set '{path}', row {i}", row)
          for i, row in enumerate(rows)]
