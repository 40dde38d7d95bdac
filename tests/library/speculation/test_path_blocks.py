"""Chosen paths verified as blocks, enumerated in float64 over all draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.speculation.verifiers import path_blocks, traversal
from decoding_jax.testing import enumeration, exactness
from support import helpers

CHOICES = {"greedy": path_blocks.greedy, "sequential": path_blocks.sequential,
           "transport": path_blocks.transport}
# Integrals over time are not sums.
TOLERANCES = {"greedy": 1e-12, "sequential": 1e-12, "transport": 2e-6}


def laws(choose, mass, draft, count, size):
  """What is chosen of `count` of `size` children: enumerated, and as told."""
  drawn = np.array(list(itertools.product(range(len(draft)), repeat=count)))
  tokens = np.pad(drawn, ((0, 0), (0, size - count)))
  valid = np.arange(size) < count
  with jax.enable_x64(True):
    result = jax.jit(jax.vmap(lambda x: choose(
        jnp.asarray(mass), jnp.asarray(draft), x, valid)))(tokens)
  chances, told = map(np.asarray, result)
  assert (chances[:, count:] == 0).all()
  np.testing.assert_allclose(chances.sum(axis=1), 1, atol=1e-12)
  law = np.zeros(len(draft))
  np.add.at(law, drawn, chances[:, :count] * draft[drawn].prod(
      axis=1, keepdims=True))
  np.testing.assert_allclose(told, told[:1].repeat(len(told), 0), atol=1e-12)
  return law, told[0]


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("size, zeros, count, reached", [
    (3, (0, 0), 2, 1.0), (4, (1, 2), 3, 0.4), (4, (2, 1), 3, 1.0),
    (5, (0, 1), 1, 0.7)])
def test_law_of_what_is_chosen(name, size, zeros, count, reached):
  target, draft = (x[0] for x in exactness.random_tables(size, *zeros))
  law, told = laws(CHOICES[name], reached * target, draft, count, 3)
  np.testing.assert_allclose(told, law, atol=TOLERANCES[name])


def test_worked_example_of_the_docstring():
  target, draft = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
  _, told = laws(path_blocks.greedy, target, draft, 2, 2)
  np.testing.assert_allclose(told, [0.36, 0.25, 0.39])


@pytest.mark.parametrize("count", [2, 4])
def test_transport_reaches_the_bound_of_any_rule(count):
  for seed in range(3):
    rng = np.random.default_rng((seed, count))
    target, draft = (rng.dirichlet(np.full(6, 0.5)) for _ in range(2))
    bound = helpers.acceptance_bound(
        target, lambda chosen: draft[list(chosen)].sum()**count)
    accepted = {name: np.minimum(target, laws(choose, target, draft, count,
                                              count)[1]).sum()
                for name, choose in CHOICES.items()}
    assert accepted["transport"] <= bound + 1e-5
    assert accepted["transport"] >= bound - 5e-3
    for name in ("greedy", "sequential"):
      assert accepted[name] <= bound + 1e-9
    # Greedily, the first child alone is one of the choices.
    assert accepted["greedy"] >= np.minimum(target, draft).sum() - 1e-12


def test_paths_accept_more_than_one_path_which_is_block_verification():
  target, draft = exactness.random_tables(3)
  expected = lambda choose, expansion: enumeration.joint_distribution(
      path_blocks.verifier(choose), enumeration.merged_paths(draft, expansion),
      target)[1]
  _, block = enumeration.joint_distribution(
      traversal.of_tree, enumeration.fixed_trees(draft, ((1,), (1,))), target)
  for choose in (path_blocks.greedy, path_blocks.sequential):
    np.testing.assert_allclose(expected(choose, (1, 1)), block, rtol=1e-9)
    assert expected(choose, (2, 1)) > block + 0.01
