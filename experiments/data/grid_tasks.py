"""Sudoku and Latin squares of four by four, as in ParallelBench.

A Sudoku here has one solution: its cells follow from the clues, and could in
principle all be filled at once. Of a Latin square nothing is given but four
symbols; its cells depend on each other.
"""

import functools

import numpy as np

from experiments.data import list_tasks

SIZE = 4
CELLS = SIZE * SIZE
BLANK = "."
# Empty cells of a puzzle, at least and at most.
FEWEST_BLANKS, MOST_BLANKS = 6, 11


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
  answer = [list_tasks.NUMBERS[value] for value in grid]
  given = [word if clue else BLANK for word, clue in zip(answer, clues)]
  return [], given, answer


def _draw_latin(rng):
  symbols, known = list_tasks.line(rng, SIZE), grids(False)
  return [], symbols, [symbols[i] for i in known[rng.integers(len(known))]]


TASKS = {
    "sudoku": list_tasks.Task(_draw_sudoku, lambda _, given, answer: (
        is_grid(answer, True) and set(answer) == set(list_tasks.NUMBERS[:4])
        and all(clue in (BLANK, word) for clue, word in zip(given, answer)))),
    "latin": list_tasks.Task(_draw_latin, lambda _, given, answer: (
        is_grid(answer, False) and set(answer) == set(given))),
}
