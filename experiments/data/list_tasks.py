"""List operations of ParallelBench (arXiv 2510.04767): waiting lines.

A line of people, here letters, is copied, reversed, sorted or shuffled, or one
of them joins, leaves or is replaced, at a place that is given or at any. Where
any place is right the answer has several forms, and its tokens depend on each
other: those are the tasks that parallel decoding breaks.
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

  # As many orders as there are: that of the prompt is one of them.
  return Task(draw, lambda _, given, answer: sorted(answer) == sorted(given))


def _edit(edit, places: int, joins: bool, chosen: bool):
  """Returns the task to edit a line at one place."""
  # `edit` is `(line, place, new) -> line`; a line of n has `n + places` places.
  # `joins`: whether there is a new person; `chosen`: whether any place is
  # right, else it is an argument.
  def draw(rng):
    *given, new = line(rng, int(rng.integers(SHORTEST, LONGEST + 1)) + 1)
    place = int(rng.integers(len(given) + places))
    arguments = [new] * joins + [NUMBERS[place]] * (not chosen)
    return arguments, given, edit(given, place, new)

  def is_right(arguments, given, answer):
    new = arguments[0] if joins else ""
    found = (range(len(given) + places) if chosen
             else [NUMBERS.index(arguments[-1])])
    return any(answer == edit(given, place, new) for place in found)

  return Task(draw, is_right)


def _insert(given, place, new):
  return given[:place] + [new] + given[place:]


def _remove(given, place, new):
  del new
  return given[:place] + given[place + 1:]


def _replace(given, place, new):
  return given[:place] + [new] + given[place + 1:]


TASKS = {
    "copy": _of_function(list),
    "reverse": _of_function(lambda given: given[::-1]),
    "sort": _of_function(sorted),
    "shuffle": _shuffle(),
    "insert": _edit(_insert, 1, joins=True, chosen=False),
    "insert_any": _edit(_insert, 1, joins=True, chosen=True),
    "remove": _edit(_remove, 0, joins=False, chosen=False),
    "remove_any": _edit(_remove, 0, joins=False, chosen=True),
    "replace": _edit(_replace, 0, joins=True, chosen=False),
    "replace_any": _edit(_replace, 0, joins=True, chosen=True),
}
