"""Tasks of ParallelBench (arXiv 2510.04767): waiting lines, and grids of four.

A line of people, here letters, is copied, reversed, sorted or shuffled, or one
of them joins, leaves or is replaced, at a given position or at any. Where any
is right the answer has several forms, and its tokens depend on each other:
parallel decoding breaks such tasks.

A Sudoku here has one solution: its cells follow from the clues, and could in
principle all be filled at once. Of a Latin square nothing is given but four
symbols; its cells depend on each other.
"""

import functools
import string
from typing import Callable, NamedTuple

import numpy as np

LETTERS = tuple(string.ascii_lowercase)
# People in a line, at least and at most; one more may join.
SHORTEST, LONGEST = 4, 12
NUMBERS = tuple(str(i) for i in range(1, LONGEST + 2))
# Of a grid: rows, columns and symbols.
SIZE = 4
CELLS = SIZE * SIZE
BLANK = "."
# Empty cells of a puzzle, at least and at most.
FEWEST_BLANKS, MOST_BLANKS = 6, 11


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


@functools.cache
def grids(boxes: bool) -> np.ndarray:
  """Returns all grids `[G, 16]` of 0 to 3, each once in rows and columns."""
  # With `boxes` also once in each quarter: 288 Sudokus; else 576 squares.
  partial = [[]]
  for cell in range(CELLS):
    partial = [[*grid, value] for grid in partial for value in range(SIZE)
               if value not in _seen(grid, cell, boxes)]
  return np.array(partial, np.int8)


def _seen(grid, cell, boxes):
  """Returns the values that a cell's row, column and box already have."""
  row, column = divmod(cell, SIZE)
  return {value for other, value in enumerate(grid)
          if other // SIZE == row or other % SIZE == column or (
              boxes and other // 8 == cell // 8
              and other % SIZE // 2 == column // 2)}


def is_grid(values, boxes: bool) -> bool:
  """Tells whether 16 symbols are a grid, whatever the symbols are."""
  symbols = sorted(set(values))
  if len(values) != CELLS or len(symbols) != SIZE:
    return False
  cells = [symbols.index(value) for value in values]
  return all(cells[cell] not in _seen(cells[:cell], cell, boxes)
             for cell in range(CELLS))


def _draw_sudoku(rng):
  known = grids(True)
  while True:
    grid = known[rng.integers(len(known))]
    blanks = rng.integers(FEWEST_BLANKS, MOST_BLANKS + 1)
    clues = np.ones(CELLS, bool)
    clues[rng.permutation(CELLS)[:blanks]] = False
    if np.sum(np.all(known[:, clues] == grid[clues], axis=1)) == 1:
      break
  answer = [NUMBERS[value] for value in grid]
  given = [word if clue else BLANK for word, clue in zip(answer, clues)]
  return [], given, answer


def _draw_latin(rng):
  symbols, known = line(rng, SIZE), grids(False)
  return [], symbols, [symbols[i] for i in known[rng.integers(len(known))]]


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
    "sudoku": Task(_draw_sudoku, lambda _, given, answer: (
        is_grid(answer, True) and set(answer) == set(NUMBERS[:4])
        and all(clue in (BLANK, word) for clue, word in zip(given, answer)))),
    "latin": Task(_draw_latin, lambda _, given, answer: (
        is_grid(answer, False) and set(answer) == set(given))),
}
