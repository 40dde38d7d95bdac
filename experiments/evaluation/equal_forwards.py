"""Compares trees with chains in CDSL, at equal target forwards.

A tree that accepts more needs fewer target forwards than a chain. For a fair
comparison it is set against the best score that chains reach with as many
forwards: one chain, or a mixture of two that decodes each example by the first
with a probability that makes the expected forwards equal.
"""

import itertools
import re

import numpy as np

from experiments.scoring import intervals
from experiments.scoring import task_rewards


def lines(records):
  """Returns a line for each tree that has chains of the same other options.

  Args:
    records: of `constrained_run.run`, of the same examples.

  Returns:
    list of text.
  """
  found = {}
  for record in records:
    if record["spec"].startswith(("cdsl(", "cdsl_extended(")):
      found.setdefault(_others(record["spec"]), []).append(record)
  return [_line(record, *mixture(record, chains))
          for members in found.values()
          for chains in [list(filter(_is_chain, members))] if chains
          for record in members if not _is_chain(record)]


def mixture(tree, chains):
  """Finds the best mixture of chains with as many target forwards as a tree.

  Args:
    tree: a record.
    chains: records of the same examples.

  Returns:
    Two chains, perhaps the same one, and the share of the first. If all chains
    need more forwards than the tree: the one with the fewest, twice.
  """
  most = _calls(tree)
  found = [(_score(chain), chain, chain, 1.0) for chain in chains
           if _calls(chain) <= most]
  for few, many in itertools.permutations(chains, 2):
    if _calls(few) <= most < _calls(many):
      share = (_calls(many) - most) / (_calls(many) - _calls(few))
      found.append((share * _score(few) + (1 - share) * _score(many), few, many,
                    share))
  least = min(chains, key=_calls)
  return max(found, key=lambda x: x[0], default=(0, least, least, 1.0))[1:]


def gain(record, other) -> str:
  """Returns how much higher the score of a record is, with its interval.

  Args:
    record: of `constrained_run.run`.
    other: `name -> [R]`, what it is compared with, of the same examples.
  """
  name = task_rewards.first(record)
  score = task_rewards.SCORES[name]
  found = score.scale * (np.array(record[name], float) - other(name))
  value, *ends = intervals.interval(found, np.ones(len(found)), 0)
  before, after = score.change
  low, high = (f"{x:+.{score.digits}f}" for x in ends)
  return f"{before} {value:+.{score.digits}f}{after} [{low}, {high}]"


def _line(tree, first, second, share):
  mixed = lambda key: (share * np.array(first[key], float)
                       + (1 - share) * np.array(second[key], float))
  ratio = np.sum(tree["target_calls"]) / np.sum(mixed("target_calls"))
  other = first["label"] if share == 1 else (
      f"{share:.2f} of ({first['label']}) + {1 - share:.2f} of "
      f"({second['label']})")
  return (f"({tree['label']}) against {other}: {gain(tree, mixed)}, "
          f"{ratio:.2f} of the target's forwards.")


def _others(spec):
  """Returns a spec without lookahead, slack, and shape of the draft."""
  return re.sub(r"(?<=\d)x\d+(?=, w=)|(chain|rsd_.\(\w+\)), slack=[^,]+", "",
                spec)


def _is_chain(record):
  return ", chain, " in record["spec"]


def _calls(record):
  return np.mean(record["target_calls"])


def _score(record):
  return np.mean(record[task_rewards.first(record)])
