"""Results by category of prompts: one row a method, temperature and category.

As the tables of Spec-Bench (arXiv 2401.07851) have them, with intervals.
"""

import collections
import re
from typing import Any, NamedTuple, Optional

import numpy as np

from experiments.evaluation import record_figures

ALL = "all"
PLAIN = "autoregressive"
# An option in the name of a method, as in suffix(8x4, paths=16).
_OPTION = re.compile(r", \w+=[^,)]*")
FASTER, SLOWER, EVEN = "faster", "slower", "no difference"


class Row(NamedTuple):
  """Figures of a method on the prompts of a category.

  Attributes:
    temperature: of target and draft.
    method: its name.
    category: of the prompts, `ALL` for all.
    prompts: how many.
    nodes: that the target scores a call, beside the root.
    depth: levels of the tree.
    figures: of `record_figures.main`.
  """
  temperature: float
  method: str
  category: str
  prompts: int
  nodes: int
  depth: int
  figures: dict[str, Any]


def rows(records, categories, temperatures, parameter_ratio) -> list[Row]:
  """Computes the figures of all categories, and of all prompts after them.

  Args:
    records: of `run.run`, with `temperature`.
    categories: of each prompt; None for prompts of no category.
    temperatures: which to report.
    parameter_ratio: parameters of the draft over those of the target.

  Returns:
    list of rows, by temperature, by method, by category.
  """
  return [Row(temperature, record["method"], category, len(chosen),
              record["tree_nodes"], record["depth"],
              record_figures.main(part, parameter_ratio))
          for temperature in dict.fromkeys(temperatures)
          for record in records if record["temperature"] == temperature
          for category, chosen, part in _parts(record, categories)]


def _parts(record, categories):
  """Yields (category, prompt numbers, record of these prompts)."""
  for category in sorted(set(categories or ())):
    chosen = np.flatnonzero(np.array(categories) == category)
    yield category, chosen, record_figures.of_prompts(record, chosen)
  yield ALL, range(len(record["emitted"])), record


def against_plain(row) -> Optional[str]:
  """Returns how fast a row is beside plain decoding, as far as can be told.

  Returns:
    `FASTER` or `SLOWER` if all of the interval is, else `EVEN`; None for plain
    decoding itself, and without an interval.
  """
  _, low, high = row.figures.get("token_rate_ratio", [None] * 3)
  if row.method == PLAIN or low is None:
    return None
  return FASTER if low > 1 else SLOWER if high < 1 else EVEN


def short_names(rows_) -> dict[str, str]:
  """Returns names without options, where no two methods differ in these alone.

  Args:
    rows_: of `rows`.

  Returns:
    dict from the names of all methods.
  """
  short = {row.method: _OPTION.sub("", row.method) for row in rows_}
  count = collections.Counter(short.values())
  return {name: x if count[x] == 1 else name for name, x in short.items()}
