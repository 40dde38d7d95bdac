"""Chosen paths verified as blocks, enumerated in float64 over all draws."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.speculation.verifiers import path_blocks, traversal
from decoding_jax.testing import exactness
from decoding_jax.types import DraftTree
from support import enumerated_trees, helpers

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


def trees(draft, count, depth):
  """All draws of `count` paths, merged where they agree: (tree, chance)."""
  steps = itertools.product(range(len(draft)), repeat=depth)
  chances = {x: np.prod([draft[i, j] for i, j in zip((0, *x), x)])
             for x in steps}
  for drawn in itertools.product(chances, repeat=count):
    tokens, parents = [0], [-1]
    first = [0] * count
    for level in range(depth):
      seen = {}
      for i, x in enumerate(drawn):
        parents.append(first[i])
        tokens.append(x[level])
      first = [seen.setdefault(x[:level + 1], len(tokens) - count + i)
               for i, x in enumerate(drawn)]
    size = len(tokens)
    mask = np.eye(size, dtype=bool)
    for node in range(1, size):
      mask[node] |= mask[parents[node]]
    inner = size - count
    with np.errstate(divide="ignore"):
      yield DraftTree(np.array(tokens), np.array(parents), np.ones(size, bool),
                      mask, np.log(draft[tokens[:inner]])), np.prod(
                          [chances[x] for x in drawn])


def joint_distribution(choose, target, draft, count, depth):
  """Of the first tokens of a call, and how many are expected."""
  probs, emitted = 0, 0.0
  with jax.enable_x64(True):
    look = jax.jit(lambda tree, node, accept: path_blocks.visit(
        choose, count, tree, lambda i: jnp.asarray(target)[tree.tokens[i]],
        node, accept))

    def below(tree, node, accept, path):
      """Paths from a node: chance, and [(path, stop, rest)] from it on."""
      here = look(tree, node, accept)
      end = path, float(here.stop), np.asarray(here.rest)
      ways = [(float(c), int(i), float(a)) for c, i, a in zip(
          here.chances, here.children, here.accepts) if c > 0]
      if not ways:
        return [(1.0, [end])]
      return [(chance * more, [end, *ends]) for chance, child, left in ways
              for more, ends in below(tree, child, left,
                                      (*path, int(tree.tokens[child])))]

    for tree, reach in trees(draft, count, depth):
      for chance, ends in below(jax.tree.map(jnp.asarray, tree), 0,
                                jnp.float64(1), ()):
        left = reach * chance
        for path, stop, rest in reversed(ends):
          taken = left * (stop if path else 1)
          left -= taken
          emitted += taken * (1 + len(path))
          probs = probs + taken * enumerated_trees.continued(
              target, path, rest / rest.sum(), depth + 1)
  return probs, emitted


@pytest.mark.long
@pytest.mark.parametrize("name", CHOICES)
def test_joint_distribution_of_a_call(name):
  target, draft = exactness.random_tables(3, 1, 0)
  probs, emitted = joint_distribution(CHOICES[name], target, draft, 2, 2)
  expected = exactness.joint_distribution(target, 0, 3)
  np.testing.assert_allclose(probs, expected, atol=TOLERANCES[name], rtol=0)
  _, rival = enumerated_trees.joint_distribution(
      traversal.of_tree, target, draft, ((1,), (1,)))
  assert emitted > rival + 0.01


@pytest.mark.long
def test_control_a_law_that_is_not_the_choice():
  def choose(mass, draft, tokens, valid):
    return path_blocks.greedy(mass, draft, tokens, valid)._replace(law=draft)

  target, draft = exactness.random_tables(3, 1, 0)
  probs, _ = joint_distribution(choose, target, draft, 2, 2)
  assert np.abs(probs - exactness.joint_distribution(target, 0, 3)).max() > 1e-3


def test_one_path_is_block_verification():
  target, draft = exactness.random_tables(3)
  _, expected = enumerated_trees.joint_distribution(
      traversal.of_tree, target, draft, ((1,), (1,)))
  for choose in (path_blocks.greedy, path_blocks.sequential):
    probs, emitted = joint_distribution(choose, target, draft, 1, 2)
    np.testing.assert_allclose(emitted, expected, rtol=1e-9)
    assert not enumerated_trees.wrong(probs, target)
