"""Monte Carlo tree search on a table, against plain Python."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.kernels import random
from decoding_jax.speculation import best_first, monte_carlo, tree as tree_lib

STATES, K = 7, 3
SCORES = np.random.default_rng(1).gamma(0.5, 1.0, (STATES, K)).astype(
    np.float32) * (np.random.default_rng(2).random((STATES, K)) < 0.8)
# What follows a state: its tokens are states.
NEXT = np.stack([np.random.default_rng(i).permutation(STATES)[:K]
                 for i in range(STATES)]).astype(np.int32)


def successors(state, scale=1.0):
  return (jnp.asarray(NEXT)[state], scale * jnp.asarray(SCORES)[state],
          jnp.asarray(NEXT)[state])


@functools.partial(jax.jit, static_argnums=(1, 2))
def expand(key, layout, simulations, start):
  return monte_carlo.expand(key, layout, simulations, start, successors)


@jax.jit
def draw(key, i, step, scores):
  return jax.random.categorical(
      random.fold_in(random.fold_in(key, i), step), jnp.log(scores))


def reference(key, depth, simulations, start, exploration=32.0):
  """Returns visits of paths, in the order in which these were found."""
  visits, totals = {(): 0}, {(): 0.0}

  def bound(path, state, rank):
    scores, child = SCORES[state].astype(float), (*path, int(NEXT[state][rank]))
    n, m = visits[path], visits.get(child, 0)
    mean = totals[child] / m if m else 0
    return mean + (exploration + math.log((n + 9) / 8)) * (
        scores[rank] / scores.sum()) * math.sqrt(n) / (1 + m)

  for i in range(1, 1 + simulations):
    path, state = (), start
    while len(path) < depth and SCORES[state].any():
      ranks = [r for r in range(K) if SCORES[state][r] > 0]
      rank = max(ranks, key=lambda r: (bound(path, state, r), -r))
      state = int(NEXT[state][rank])
      path = (*path, state)
      if path not in visits:
        visits[path], totals[path] = 0, 0.0
        break
    value, step, length = 1.0, 0, len(path)
    while length < depth and SCORES[state].any():
      rank = int(draw(key, i, step, SCORES[state]))
      value += SCORES[state][rank]
      state, step, length = int(NEXT[state][rank]), step + 1, length + 1
    for end in range(len(path) + 1):
      visits[path[:end]] += 1
      totals[path[:end]] += value
  return visits


def paths(tokens, parents, valid):
  results = [()]
  for token, parent in zip(tokens.tolist(), parents.tolist()):
    results.append((*results[parent], token))
  return [path for path, ok in zip(results[1:], valid.tolist()) if ok]


@pytest.mark.parametrize("nodes, depth, simulations", [
    (6, 3, 40), (8, 2, 8), (5, 4, 100)])
def test_the_most_visited_nodes(nodes, depth, simulations):
  """Control: with less exploration other nodes are the most visited."""
  layout = tree_lib.free_layout(nodes, depth, K)
  others = 0
  for start in range(STATES):
    key = jax.random.key(start)
    result = paths(*expand(key, layout, simulations, jnp.int32(start)))
    best = lambda visits: sorted(
        (p for p in visits if p), key=lambda p: -visits[p])[:nodes]
    visits = reference(key, depth, simulations, start)
    assert result == best(visits)
    assert all(path[:-1] in [(), *result] for path in result)
    others += result != best(reference(key, depth, simulations, start, 0.5))
  assert others


def test_nothing_is_drafted_where_nothing_is_known():
  layout = tree_lib.free_layout(4, 2, K)
  nothing = functools.partial(successors, scale=0.0)
  for result in (monte_carlo.expand(jax.random.key(0), layout, 9, jnp.int32(0),
                                    nothing),
                 best_first.expand(layout, jnp.int32(0), nothing)):
    assert not result[2].any()
