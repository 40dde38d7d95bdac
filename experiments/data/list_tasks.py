"""List operations of ParallelBench (arXiv 2510.04767): waiting lines.

A line of people, here letters, is copied, reversed, sorted or shuffled, or one
of them joins, leaves or is replaced, at a given position or at any. Where any
is right the answer has several forms, and its tokens depend on each other:
parallel decoding breaks such tasks.
"""

import string
from typing import Callable, NamedTuple

import numpy as np

LETTERS = tuple(string.ascii_lowercase)
# People in a line, at least and at most; one more may join.
SHORTEST, LONGEST = 4, 12
NUMBERS = tuple(str(i) for i in range(1, LONGEST + 2))


class Task(NamedTuple):
  """A task with prompts of words."""
  # `(rng) -> (arguments, given, answer)`, lists of words: at most two
  # arguments, what is given, and one right answer.
  draw: Callable[..., tuple[list[str], list[str], list[str]]]
  # `(arguments, given, answer) -> bool`, of any answer.
  is_right: Callable[[list[str], list[str], list[str]], bool]


def line(rng: np.random.Generator, length: int | None = None) -> list[str]:
  """Draws people, all different, in any order; of any length without one."""
  if length is None:
    length = int(rng.integers(SHORTEST, LONGEST + 1))
  return [LETTERS[i] for i in rng.permutation(len(LETTERS))[:length]]


def _of_function(function):
  """Returns a task whose only right answer is a function of the line."""
  def draw(rng):
    given = line(rng)
    return [], given, function(given)

  return Task(draw, lambda _, given, answer: answer == function(given))


def _shuffle():
  def draw(rng):
    given = line(rng)
    return [], given, [given[i] for i in rng.permutation(len(given))]

  # As many orders as there are: the prompt's is one of them.
  return Task(draw, lambda _, given, answer: sorted(answer) == sorted(given))


def _edit(joins: int, leaves: int, chosen: bool):
  """Returns the task that a person, 0 or 1, joins or leaves at one position."""
  # `chosen`: whether any position is right; else it is an argument.
  def edit(given, position, new):
    return given[:position] + [new] * joins + given[position + leaves:]

  def draw(rng):
    *given, new = line(rng, int(rng.integers(SHORTEST, LONGEST + 1)) + 1)
    position = int(rng.integers(len(given) + 1 - leaves))
    arguments = [new] * joins + [NUMBERS[position]] * (not chosen)
    return arguments, given, edit(given, position, new)

  def is_right(arguments, given, answer):
    new = arguments[0] if joins else ""
    positions = (range(len(given) + 1 - leaves) if chosen
                 else [NUMBERS.index(arguments[-1])])
    return any(answer == edit(given, position, new) for position in positions)

  return Task(draw, is_right)


TASKS = {
    "copy": _of_function(list),
    "reverse": _of_function(lambda given: given[::-1]),
    "sort": _of_function(sorted),
    "shuffle": _shuffle(),
    "insert": _edit(joins=1, leaves=0, chosen=False),
    "insert_any": _edit(joins=1, leaves=0, chosen=True),
    "remove": _edit(joins=0, leaves=1, chosen=False),
    "remove_any": _edit(joins=0, leaves=1, chosen=True),
    "replace": _edit(joins=1, leaves=1, chosen=False),
    "replace_any": _edit(joins=1, leaves=1, chosen=True),
}
