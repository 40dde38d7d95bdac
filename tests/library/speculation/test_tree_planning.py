"""Plans: expected tokens by simulation, best trees by exhaustion."""

import itertools

import numpy as np
import pytest

from decoding_jax.speculation import tree_planning

ACCEPT = tree_planning.Acceptance(by_rank=np.array([.6, .3, .2]),
                                  hazard=np.array([1.0, .8]))


def chance(rank, depth):
  """Of a sibling, from the definition."""
  return 1 - (1 - ACCEPT.by_rank[rank])**ACCEPT.hazard[min(depth, 2) - 1]


def simulated(children, rows, seed):
  """Mean tokens of a step where siblings are accepted in turn."""
  rng = np.random.default_rng(seed)
  total = 0
  for _ in range(rows):
    node = 0
    for depth, counts in enumerate(children, 1):
      hits = [rng.random() < chance(rank, depth)
              for rank in range(counts[node])]
      total += 1
      if not any(hits):
        break
      node = sum(counts[:node]) + hits.index(True)
    else:
      total += 1
  return total / rows


@pytest.mark.parametrize("children", [
    ((1,),), ((3,),), ((2,), (2, 1)), ((3,), (0, 1, 2), (1, 0, 0))], ids=str)
def test_expected_tokens(children):
  rows = 20_000
  # Steps have 1 to 4 tokens: a standard error is at most 1.5 / sqrt(rows).
  assert abs(tree_planning.expected_tokens(children, ACCEPT) -
             simulated(children, rows, 0)) < 5 * 1.5 / rows**.5


def trees(nodes, depth):
  """All trees of at most so many nodes and levels, with 3 siblings at most."""
  def extend(levels, width, left):
    yield tuple(levels)
    if len(levels) < depth:
      for counts in itertools.product(range(4), repeat=width):
        if 0 < sum(counts) <= left:
          yield from extend([*levels, counts], sum(counts), left - sum(counts))

  return [tree for tree in extend([], 1, nodes) if tree]


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_best_trees_are_the_best_of_all(depth):
  values = {}
  for tree in trees(5, depth):
    size = sum(map(sum, tree))
    values[size] = max(values.get(size, 0),
                       tree_planning.expected_tokens(tree, ACCEPT))
  most = list(itertools.accumulate((values[n] for n in sorted(values)), max))
  results = [tree_planning.expected_tokens(tree, ACCEPT)
             for tree in tree_planning.best_trees(ACCEPT, 5, depth)]
  np.testing.assert_allclose(results[:len(most)], most, rtol=1e-12)
  assert len(results) == 5
