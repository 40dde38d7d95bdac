"""RSD-S of two levels, enumerated in float64: distribution, efficiency.

A stochastic beam is a sample without replacement of sequences, in order: so
the order of the sequences settles the tree. The first W of them are its second
level; the first W different first tokens are its first level.
"""

import functools

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import verifiers
from decoding_jax.testing import exactness
from support import helpers

WIDTH = 2
VOCAB = 3
ROWS = 20_000
SIGMAS = 5
RULE = verifiers.recursive(False).rule


def tables(zeros):
  rng = np.random.default_rng(zeros)
  return (exactness.random_table(rng, VOCAB, zeros),
          exactness.random_table(rng, VOCAB, zeros))


def orders(probs):
  """Orders of sequences, as far as they settle the tree: `(order, p)`."""
  def extend(order, probs, probability):
    starts = {first for first, _ in order}
    if not probs.any() or len(order) >= WIDTH and len(starts) >= WIDTH:
      yield order, probability
      return
    probs = probs / probs.sum()
    for pair in zip(*np.nonzero(probs)):
      rest = probs.copy()
      rest[pair] = 0
      yield from extend(order + [tuple(map(int, pair))], rest,
                        probability * probs[pair])

  yield from extend([], probs, 1.0)


@functools.lru_cache(maxsize=None)
def walk(zeros):
  """Returns the joint distribution `[V, V]`, and mean accepted tokens."""
  target, draft = tables(zeros)

  @functools.lru_cache(maxsize=None)
  def visit(node, siblings):
    tokens, valid, _ = helpers.pad_draws([(siblings, 1.0)], WIDTH)
    chances, rests = helpers.acceptance(
        RULE, target[node], draft[node], tokens, valid)
    return chances[0], rests[0]

  probs, accepted = np.zeros((VOCAB, VOCAB)), 0.0
  for order, reach in orders(exactness.joint_distribution(draft, 0, 2)):
    starts = tuple(dict.fromkeys(first for first, _ in order))[:WIDTH]
    chances, rest = visit(0, starts)
    for first, chance in zip(starts, chances):
      here, reach = reach * chance, reach * (1 - chance)
      accepted += here
      below = tuple(b for a, b in order[:WIDTH] if a == first)
      deep, deep_rest = visit(first, below)
      for second, chance in zip(below, deep):
        probs[first, second] += here * chance
        accepted += here * chance
        here *= 1 - chance
      probs[first] += here * deep_rest
    # The second token is then the first one of the next call: its distribution
    # is the target's, by the claim under test for one level.
    probs += reach * rest[:, None] * target
  return probs, accepted


@pytest.mark.parametrize("zeros", [0, 1])
def test_distribution_by_enumeration(zeros):
  target, draft = tables(zeros)
  probs, _ = walk(zeros)
  np.testing.assert_allclose(probs,
                             exactness.joint_distribution(target, 0, 2),
                             atol=1e-12)


@pytest.mark.parametrize("width", [WIDTH, WIDTH + 1])
def test_block_efficiency_is_the_enumerated_one(width):
  """Control: another width is told apart."""
  _, expected = walk(0)
  _, stats = exactness.frequencies(dj.methods.rsd_s(width, 2), *tables(0), ROWS,
                                   1)
  accepted = np.asarray(stats.accepted_by_depth) @ np.arange(3)
  error = accepted.std() / np.sqrt(ROWS)
  assert (abs(accepted.mean() - expected) < SIGMAS * error) == (width == WIDTH)
