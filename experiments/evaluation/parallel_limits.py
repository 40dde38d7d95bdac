"""Exact limits of parallel decoding, after ParallelBench (arXiv 2510.04767).

A model that knows every distribution exactly, and draws k positions a step
independently of each other, still answers wrongly where the positions of an
answer depend on each other. In a list of n people, whatever the order:

  copy         the answer is certain: never wrong.
  shuffle      m people are left; k positions drawn of them are all different
               with probability m! / (m - k)! / m^k.
  replace_any  each of the m positions left is the new one with probability
               1 / m, until one is: then all others are certain.

Of n = 8 at once: shuffle 8! / 8^8 = 0.0024, replace_any (7 / 8)^7 = 0.39.
"""

import math

TASKS = ("copy", "replace_any", "shuffle")


def accuracy(task: str, length: int, tokens: int) -> float:
  """Returns the probability of a right answer.

  Args:
    task: one of `TASKS`.
    length: n, positions of the answer.
    tokens: k, positions drawn a step, fewer in the last one.
  """
  return _EXACT[task](length, tokens)


def dependence(task: str, length: int) -> float:
  """Returns the total correlation of the answer's positions, in nats.

  It is the sum of their entropies less that of the answer: the least divergence
  of one parallel step from the distribution of answers.
  """
  return {
      "copy": 0.0,
      "shuffle": length * math.log(length) - math.lgamma(length + 1),
      "replace_any": length * _entropy(1 / length) - math.log(length),
  }[task]


def _copy(left, tokens):
  del left, tokens
  return 1.0


def _shuffle(left, tokens):
  if not left:
    return 1.0
  count = min(tokens, left)
  return math.perm(left, count) / left**count * _shuffle(left - count, tokens)


def _replace(left, tokens):
  if not left:
    return 0.0
  count = min(tokens, left)
  one = count * (1 / left) * (1 - 1 / left)**(count - 1)
  return one + (1 - 1 / left)**count * _replace(left - count, tokens)


def _entropy(p):
  return -sum(x * math.log(x) for x in (p, 1 - p) if x > 0)


_EXACT = {"copy": _copy, "shuffle": _shuffle, "replace_any": _replace}
