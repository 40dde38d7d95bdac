"""Closed forms of parallel decoding, against enumeration."""

import itertools
import math

import numpy as np
import pytest

from experiments.evaluation import parallel_limits


def _answers(task, length):
  """Returns all equally probable answers."""
  if task == "copy":
    return [tuple(range(length))]
  if task == "shuffle":
    return list(itertools.permutations(range(length)))
  return [tuple(-1 if i == j else i for i in range(length))
          for j in range(length)]


def _accuracy(answers, tokens, filled=()):
  """Draws `tokens` places at a time from the exact marginals, in order."""
  length = len(answers[0])
  if len(filled) == length:
    return 1.0
  count = min(tokens, length - len(filled))
  marginals = [{} for _ in range(count)]
  for answer in answers:
    for i in range(count):
      value = answer[len(filled) + i]
      marginals[i][value] = marginals[i].get(value, 0) + 1 / len(answers)
  total = 0.0
  for values in itertools.product(*marginals):
    now = (*filled, *values)
    left = [x for x in answers if x[:len(now)] == now]
    if left:
      total += math.prod(m[v] for m, v in zip(marginals, values)) * _accuracy(
          left, tokens, now)
  return total


@pytest.mark.parametrize("task", parallel_limits.TASKS)
@pytest.mark.parametrize("tokens", [1, 2, 3, 5])
def test_equals_enumeration(task, tokens):
  expected = _accuracy(_answers(task, 5), tokens)
  found = parallel_limits.accuracy(task, 5, tokens)
  assert abs(found - expected) < 1e-12
  assert (found == 1) == (task == "copy" or tokens == 1)


@pytest.mark.parametrize("task", parallel_limits.TASKS)
def test_dependence_is_the_total_correlation(task):
  answers = np.array(_answers(task, 5))
  entropy = 0.0
  for column in answers.T:
    shares = np.unique(column, return_counts=True)[1] / len(answers)
    entropy -= np.sum(shares * np.log(shares))
  assert abs(parallel_limits.dependence(task, 5) - (
      entropy - math.log(len(answers)))) < 1e-12
