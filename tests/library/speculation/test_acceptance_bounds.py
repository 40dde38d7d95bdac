"""Bounds of acceptance: all sets of tokens, and rules that attain them."""

import itertools

import numpy as np
import pytest

from decoding_jax.testing import exactness
from support import acceptance_bounds, enumerated_trees, helpers

V, K = 5, 3
DRAWS = {
    acceptance_bounds.with_replacement: lambda probs, count: (
        (tokens, (True,) * count, chance) for tokens, chance in
        helpers.ordered_draws(probs, count, replacement=True)),
    acceptance_bounds.without_replacement: enumerated_trees.without_replacement,
    acceptance_bounds.greedy_and_sample: enumerated_trees.greedy_and_sample}
PAIRS = [(0, 0, 0), (2, 0, 1), (0, 1, 2), (1, 1, 3)]


def enumerated(target, draft, count, draws):
  """The bound, of all sets of tokens and all draws."""
  found = []
  drawn = [(set(np.array(tokens)[list(valid)].tolist()), chance)
           for tokens, valid, chance in draws(draft, count)]
  for size in range(len(target) + 1):
    for chosen in map(set, itertools.combinations(range(len(target)), size)):
      inside = sum(chance for tokens, chance in drawn if tokens <= chosen)
      found.append(1 + sum(target[x] for x in chosen) - inside)
  return min(found)


@pytest.mark.parametrize("bound", DRAWS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("zeros_target, zeros_draft, seed", PAIRS)
def test_all_sets(bound, zeros_target, zeros_draft, seed):
  target, draft = exactness.random_tables(V, zeros_target, zeros_draft)
  target, draft = target[seed], draft[seed]
  expected = [enumerated(target, draft, count, DRAWS[bound])
              for count in range(1, K + 1)]
  found = bound(target[None], draft[None], K)[0]
  np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)
  # One child: the overlap of the distributions. More of them help.
  assert found[0] == pytest.approx(np.minimum(target, draft).sum(), abs=1e-6)
  assert (np.diff(found) > -1e-6).all()


def test_very_peaked_distributions():
  """Of a nearly sure drafter a second child is drawn late."""
  target, draft = np.array([[.5, .3, .2]]), np.array([[1 - 2e-6, 1e-6, 1e-6]])
  expected = [enumerated(target[0], draft[0], count,
                         enumerated_trees.without_replacement)
              for count in (1, 2)]
  found = acceptance_bounds.without_replacement(target, draft, 2)[0]
  np.testing.assert_allclose(found, expected, atol=1e-6, rtol=0)


def test_the_worked_numbers_of_the_docstrings():
  target, draft = np.array([[.5, .3, .2]]), np.array([[.2, .5, .3]])
  np.testing.assert_allclose(acceptance_bounds.with_replacement(
      target, draft, 2), [[.7, .86]], atol=1e-12)
  # Both children are of the tokens 1 and 2.
  inside = .5 * .3 / .5 + .3 * .5 / .7
  np.testing.assert_allclose(acceptance_bounds.without_replacement(
      target, draft, 2), [[.7, 1 + .5 - inside]], atol=1e-6)


def test_top_k():
  target, draft = np.array([[.5, .3, .2]]), np.array([[.2, .5, .3]])
  np.testing.assert_allclose(acceptance_bounds.top_k(target, draft, 2),
                             [[.3, .5]])


def test_a_large_vocabulary_is_bounded_from_above():
  """Tokens that are put together accept no less."""
  rng = np.random.default_rng(0)
  target, draft = rng.dirichlet(np.full(2000, .02), (2, 3))
  found = acceptance_bounds.with_replacement(target, draft, 1)[:, 0]
  overlap = np.minimum(target, draft).sum(axis=1)
  assert ((found > overlap - 1e-12) & (found < overlap + 2e-3)).all()
