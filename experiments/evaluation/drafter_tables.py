"""Tables of the same trees drafted in several ways, and what they answer.

Where one forward of a drafter gives the distributions of a whole block, a tree
costs one forward however it is chosen: sampled without replacement, or as the
most probable nodes. Which of the two accepts more, of as many nodes?
"""

import math

from experiments.app import text_tables
from experiments.evaluation import tables
from experiments.scoring import intervals

_METRIC = "block_efficiency"
# Trees that are sampled without replacement, and deterministic ones.
_SAMPLED, _BEST_FIRST = ("RSD-S", "RSD-S, traversal"), ("OPT-Tree",)
_NAMES = {"SD, traversal": "chain, block", "OPT-Tree": "best-first",
          "RSD-S": "RSD-S, recursive",
          "RSD-C, conditional_ot": "conditional OT"}
_QUESTION = """\
Does sampling without replacement (RSD-S) over a drafter of one forward a tree
accept more than best-first trees of as many nodes? In tokens a target call:"""
_NOTE = """\
Tokens a target call with 95 % bootstrap intervals over prompts: of each method
the best of its trees with at most so many nodes. Chains are verified as a
block; best-first trees are those of the most probable nodes (OPT-Tree), and a
token of the target is matched with them, as DDTree and JetSpec do; conditional
OT is on trees of fixed branching, RSD-C. Which trees they are, their speeds,
and whether the text has the distribution of the target: in the folder of each
drafter.

Gains are those of RSD-S, verified in the better of both ways, over best-first
trees of as many nodes; their intervals are over the prompts, which both have
decoded. At temperature 0 nothing is sampled, and RSD-S is a beam search."""


def answers(rows) -> list[str]:
  """Tells whether sampled trees beat best-first ones, a line a temperature.

  Args:
    rows: dict from drafters to rows of `tables.rows`.

  Returns:
    Lines about the drafters that need one forward a tree.
  """
  found = []
  for temperature, drafters in _by_temperature(rows).items():
    said = [_sentence(name, trees) for name, trees in drafters.items()
            if _one_forward(trees) and _rivals(trees)]
    if said:
      found.append(f"T = {temperature:g}: {'; '.join(said)}.")
  return found


def terminal(rows) -> str:
  """Formats tables and answers for the terminal.

  Args:
    rows: dict from drafters to rows of `tables.rows`.
  """
  blocks = [f"Tokens a target call, temperature {temperature:g}\ncolumns: "
            f"{tables.POINTS['budget']}\n" + text_tables.plain_table(
                _lines(drafters, tables.plus_minus))
            for temperature, drafters in _by_temperature(rows).items()]
  told = "\n".join(answers(rows))
  return "\n\n".join(filter(None, [*blocks, told and f"{_QUESTION}\n{told}"]))


def write(path, rows, about=""):
  """Writes the summary.

  Args:
    path: file.
    rows: dict from drafters to rows of `tables.rows`.
    about: of `provenance.markdown`.
  """
  told = "\n".join(f"- {line}" for line in answers(rows))
  blocks = ["# Drafters", about, _NOTE, told and f"{_QUESTION}\n\n{told}"]
  for temperature, drafters in _by_temperature(rows).items():
    blocks += [f"## Temperature {temperature:g}", text_tables.markdown_table(
        _lines(drafters, tables.interval))]
    points, gains = _points(drafters), {
        name: _gains(trees) for name, trees in drafters.items()}
    blocks.append(text_tables.markdown_table(
        [["gain of RSD-S", *map(str, points)], *(
            [name, *(_percent(found[x]) if x in found else "" for x in points)]
            for name, found in gains.items())]))
  path.write_text("\n\n".join(filter(None, blocks)) + "\n", encoding="utf-8")


def _by_temperature(rows):
  """Returns dicts: temperature -> drafter -> label -> nodes -> row."""
  found = {}
  for name, of_drafter in rows.items():
    for (experiment, temperature), trees in tables.best(
        of_drafter, _METRIC).items():
      if experiment == "budget":
        found.setdefault(temperature, {})[name] = trees
  return found


def _points(drafters):
  return sorted({point for trees in drafters.values()
                 for of_label in trees.values() for point in of_label})


def _lines(drafters, form):
  """Returns lines of a table, the head first."""
  points = _points(drafters)
  lines = [["drafter", "method", *map(str, points)]]
  for name, trees in drafters.items():
    for label, of_label in trees.items():
      lines.append([name, _NAMES.get(label, label), *(
          form(of_label[point]["metrics"][_METRIC]) if point in of_label else ""
          for point in points)])
  return lines


def _one_forward(trees):
  """Returns whether no tree costs more than a forward of the drafter a call."""
  return all(sum(row["draft_calls"]) <= sum(row["target_calls"])
             for of_label in trees.values() for row in of_label.values())


def _rivals(trees):
  """Returns dict: nodes -> (sampled row, best-first row), the best of each."""
  best = lambda labels, point: max(
      (trees[x][point] for x in labels if point in trees.get(x, ())),
      key=lambda row: row["metrics"][_METRIC][0], default=None)
  points = sorted({point for of_label in trees.values() for point in of_label})
  pairs = {point: (best(_SAMPLED, point), best(_BEST_FIRST, point))
           for point in points}
  return {point: pair for point, pair in pairs.items() if None not in pair}


def _counts(row):
  return row["emitted"], row["target_calls"]


def _gains(trees):
  """Returns dict: nodes -> `[3]`, the gain and its interval."""
  return {point: intervals.gain([tuple(map(_counts, pair))])
          for point, pair in _rivals(trees).items()}


def _sentence(name, trees):
  """Returns what a temperature says of a drafter, all numbers of nodes."""
  gain = intervals.gain([tuple(map(_counts, pair))
                         for pair in _rivals(trees).values()])
  each = ", ".join(f"{100 * found[0]:+.1f} at {point}"
                   for point, found in _gains(trees).items())
  return f"{name} {_verdict(gain)}, {_percent(gain)} ({each} nodes)"


def _verdict(gain):
  _, low, high = gain
  if math.isnan(low) or low <= 0 <= high:
    return "undecided"
  return "yes" if low > 0 else "no"


def _percent(gain):
  """Formats a gain with its interval, in per cent."""
  value, low, high = (100 * x for x in gain)
  return f"{value:+.1f} %" + (
      "" if math.isnan(low) else f" [{low:+.1f}, {high:+.1f}]")
