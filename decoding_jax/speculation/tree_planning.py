"""The fixed tree of most expected tokens, for known acceptance rates.

As in Sequoia (arXiv 2402.12374, section 3.1), acceptance depends on the sibling
rank; here on the depth as well. Plain numpy.
"""

from typing import NamedTuple

import numpy as np


class Acceptance(NamedTuple):
  """Acceptance rates by node; `metrics.acceptance_by_rank` counts them."""
  # `[K]`, of a sibling of each rank, those before it rejected.
  by_rank: np.ndarray
  # `[D]`, how much more than on average is accepted at depth 1, ..., D; the
  # last one holds below.
  hazard: np.ndarray


def expected_tokens(children, accept: Acceptance) -> float:
  """Returns tokens of a step: 1 and the sum of nodes' acceptance probabilities.
  `children` are of each node of level 0, 1, ..., as in `methods.sequoia`."""
  reached, total = [1.0], 1.0
  for depth, counts in enumerate(children, 1):
    below = []
    for chance, count in zip(reached, counts):
      for rank in range(count):
        hit = _of_rank(accept, rank, depth)
        below.append(chance * hit)
        chance *= 1 - hit
    reached = below
    total += sum(below)
  return total


def best_trees(accept: Acceptance, nodes: int, depth: int):
  """Returns the trees of most expected tokens (arXiv 2402.12374, 3.1.2).
  Dynamic programming over the nodes of a subtree, the depth of its root and the
  rank of the next sibling. Item n - 1 of the list is `children` of
  `methods.sequoia` for n nodes, or for fewer if more would not help."""
  # Tokens that are expected below an accepted node, by the nodes there.
  below, choices = np.zeros(nodes + 1), []
  for level in range(depth, 0, -1):
    chances = [_of_rank(accept, rank, level)
               for rank in range(len(accept.by_rank))]
    rest, taken = np.zeros(nodes + 1), []
    for hit in reversed(chances):
      rest, sizes = _split(hit, 1 + below[:-1], rest)
      taken.append(sizes)
    below = rest
    choices.append(taken[::-1])
  return [_read_tree(choices[::-1], n) for n in range(1, nodes + 1)]


def _split(hit, first, rest):
  """Returns the most that 0, ..., n nodes are worth, and the first sibling's
  share. `hit` is its acceptance probability, `first [n]` the value of a subtree
  of 1, ..., n nodes below it, `rest [n + 1]` of 0, ..., n nodes among its
  siblings."""
  values, sizes = np.zeros(len(rest)), np.zeros(len(rest), int)
  for n in range(1, len(rest)):
    own = np.arange(1, n + 1)
    worth = hit * first[own - 1] + (1 - hit) * rest[n - own]
    if worth.max() > 0:
      values[n], sizes[n] = worth.max(), own[worth.argmax()]
  return values, sizes


def _of_rank(accept, rank, depth):
  """Returns a sibling's rate, earlier ones rejected; 0 beyond the ranks."""
  if rank >= len(accept.by_rank):
    return 0.0
  return 1 - (1 - accept.by_rank[rank])**_last(accept.hazard, depth)


def _read_tree(choices, nodes):
  """The children of all nodes, level after level, from what was chosen."""
  children, sizes = [], [nodes]
  for taken in choices:
    counts, below = [], []
    for left in sizes:
      own = []
      for of_rank in taken:
        size = int(of_rank[left])
        if not size:
          break
        own.append(size)
        left -= size
      counts.append(len(own))
      below += [size - 1 for size in own]
    if not below:
      break
    children.append(tuple(counts))
    sizes = below
  return tuple(children)


def _last(values, depth):
  return values[min(depth, len(values)) - 1]
