"""JSON schemas with valid and invalid values, in the form of MaskBench."""

import pathlib
from typing import Any, NamedTuple

from experiments.data import records

# A few of our own, each of keywords that people use.
SHIPPED = pathlib.Path(__file__).parent / "schemas.jsonl"


class SchemaTask(NamedTuple):
  """A schema, and values that are valid by it and that are not."""
  name: str
  schema: Any  # as parsed from JSON
  valid: list
  invalid: list


def read(path: str, limit: int = 0) -> list[SchemaTask]:
  """Returns the first `limit` schemas of a file; 0 for all."""
  # Records of it, see `records.load`, have `schema`, `tests` (a list of `data`
  # and `valid`), and perhaps `name`.
  tasks = []
  for number, record in enumerate(
      records.load(path, name="--config.schemas")[:limit or None], 1):
    try:
      tests = [(x["data"], bool(x["valid"])) for x in record.value["tests"]]
      tasks.append(SchemaTask(
          str(record.value.get("name", number)), record.value["schema"],
          [x for x, valid in tests if valid],
          [x for x, valid in tests if not valid]))
    except (AttributeError, KeyError, TypeError) as e:
      raise ValueError(f"{record.where}: an object with 'schema' and 'tests' "
                       f"of 'data' and 'valid' is needed: {e}.") from e
  return tasks
