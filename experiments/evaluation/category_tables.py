"""Tables by category of prompts, such as those of Spec-Bench."""

import statistics

import numpy as np

from decoding_jax import metrics
from experiments.app import text_tables

_ALL = "all"
_CALLS, _SPEED = "tokens a call", "speed x AR"


def rows(records, categories, temperatures):
  """Computes figures of each method by the category of a prompt.

  Args:
    records: of `run.run`, with `temperature`.
    categories: of each prompt; None for prompts of no category.
    temperatures: which to report.

  Returns:
    dict from (figure, temperature) to lines of text, the head first: tokens a
    target call; and, where the baseline was timed on each prompt, the median
    over prompts of the speed relative to it.
  """
  found = {}
  groups = {_ALL: slice(None)}
  if categories is not None:
    groups = {name: np.array(categories) == name
              for name in sorted(set(categories))} | groups
  for temperature in temperatures:
    for record in records:
      if record["temperature"] != temperature:
        continue
      emitted, calls = map(np.array, (record["emitted"],
                                      record["target_calls"]))
      figures = {_CALLS: [metrics.block_efficiency(emitted[x], calls[x])
                          for x in groups.values()]}
      if "speed" in record:
        speed = np.array(record["speed"])
        figures[_SPEED] = [statistics.median(speed[x])
                           for x in groups.values()]
      elif categories is None:
        continue
      for figure, values in figures.items():
        lines = found.setdefault((figure, temperature),
                                 [[figure, *groups]])
        lines.append([record["method"], *(f"{x:.2f}" for x in values)])
  return found


def terminal(found) -> str:
  """Formats tables of `rows`."""
  return "\n\n".join(f"{_title(key)}\n{text_tables.plain_table(lines)}"
                     for key, lines in found.items())


def markdown(found) -> str:
  """Formats tables of `rows` in Markdown."""
  return "\n\n".join(
      f"## {_title(key)}\n\n{text_tables.markdown_table(lines)}"
      for key, lines in found.items())


def _title(key):
  figure, temperature = key
  what = {_CALLS: "Tokens a target call", _SPEED: "Speed relative to plain "
          "decoding of the same prompt, median over prompts"}[figure]
  return f"{what}, temperature {temperature:g}"
