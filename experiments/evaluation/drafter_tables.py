"""Tables of the same trees drafted in several ways, and what they answer.

Where one forward of a drafter gives the distributions of a whole block, a tree
costs one forward however it is chosen: sampled without replacement, or as the
most probable nodes. Which of the two accepts more, of as many nodes?
"""

import math

from experiments.app import text_tables
from experiments.evaluation import figures
from experiments.scoring import intervals

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


def compared(trees) -> list[dict]:
  """Returns the trees that drafters are compared by.

  Args:
    trees: dict from drafters to trees of `tree_tables.best`.

  Returns:
    Those with most tokens a target call within a budget, with their `drafter`.
  """
  return [{**r, "drafter": name} for name, of_drafter in trees.items()
          for r in text_tables.select(of_drafter, metric="block_efficiency",
                                      experiment="budget")]


def answers(trees) -> list[str]:
  """Tells whether sampled trees beat best-first ones, a line a temperature.

  Args:
    trees: of `compared`.

  Returns:
    Lines about the drafters that need one forward a tree.
  """
  found = []
  for (temperature,), chosen in text_tables.grouped(
      trees, "temperature").items():
    said = [_sentence(name, pairs) for name, pairs in _rivals(chosen).items()
            if _one_forward(text_tables.select(chosen, drafter=name))]
    if said:
      found.append(f"T = {temperature:g}: {'; '.join(said)}.")
  return found


def terminal(trees) -> str:
  """Formats tables and answers of `compared` trees for the terminal."""
  told = "\n".join(answers(trees))
  return text_tables.render([*(
      (f"Tokens a target call, temperature {temperature:g}\ncolumns: "
       f"{figures.POINTS['budget']}", _lines(chosen, text_tables.plus_minus))
      for (temperature,), chosen in text_tables.grouped(
          trees, "temperature").items()),
                             told and f"{_QUESTION}\n{told}"],
                            text_tables.terminal)


def write(path, trees, about=""):
  """Writes the summary.

  Args:
    path: file.
    trees: of `compared`.
    about: of `provenance.markdown`.
  """
  told = "\n".join(f"- {line}" for line in answers(trees))
  blocks = ["# Drafters", about, _NOTE, told and f"{_QUESTION}\n\n{told}"]
  for (temperature,), chosen in text_tables.grouped(
      trees, "temperature").items():
    points = dict.fromkeys(sorted({r["point"] for r in chosen}))
    gains = [r for name, pairs in _rivals(chosen).items()
             for point, pair in pairs.items() for r in text_tables.long_records(
                 {"gain": _percent(_gain([pair]))}, drafter=name, point=point)]
    blocks += [(f"Temperature {temperature:g}",
                _lines(chosen, text_tables.interval)),
               ("", text_tables.pivot(gains, {"drafter": "gain of RSD-S"},
                                      "point", {x: str(x) for x in points}))]
  text_tables.write(path, blocks)


def _lines(trees, form):
  return text_tables.pivot(
      [{**r, "label": _NAMES.get(r["label"], r["label"])} for r in trees],
      {"drafter": "drafter", "label": "method"}, "point", form=form)


def _one_forward(trees):
  """Returns whether no tree costs more than a forward of the drafter a call."""
  return all(sum(r["record"]["draft_calls"]) <= sum(r["record"]["target_calls"])
             for r in trees)


def _rivals(trees):
  """Returns dict: drafter -> nodes -> (sampled, best-first), the best of each.
  """
  found = {}
  for (name, point), chosen in text_tables.grouped(
      trees, "drafter", "point").items():
    pair = [max((r for r in chosen if r["label"] in labels),
                key=lambda r: r["value"], default=None)
            for labels in (_SAMPLED, _BEST_FIRST)]
    if None not in pair:
      found.setdefault(name, {})[point] = pair
  return found


def _gain(pairs):
  """Returns `[3]`, the gain of first over second trees, and its interval."""
  return intervals.gain([
      tuple((r["record"]["emitted"], r["record"]["target_calls"]) for r in pair)
      for pair in pairs])


def _sentence(name, pairs):
  """Returns what a temperature says of a drafter, all numbers of nodes."""
  gain = _gain(list(pairs.values()))
  each = ", ".join(f"{100 * _gain([pair])[0]:+.1f} at {point}"
                   for point, pair in pairs.items())
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
