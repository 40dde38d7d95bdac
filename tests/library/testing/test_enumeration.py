"""Every rule, every way to draw for it and shared budgets, enumerated."""

import functools
import itertools

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax import sampling
from decoding_jax.speculation import tree as tree_lib, verifiers
from decoding_jax.speculation.drafters import best_first_trees, shared_nodes
from decoding_jax.speculation.verifiers import path_blocks, shared_gumbel
from decoding_jax.testing import enumeration, exactness

Draws = dj.Draws
# Of `global_resolution` it is the error of an integral.
TOLERANCE, OF_INTEGRALS = 1e-12, 2e-6
# Rules that follow the target's own draws, and one without a name.
OTHERS = {"match": verifiers.sample_and_match(), "k_seq": verifiers.k_seq()}
CASES = [(name, draws) for name, rule in verifiers.RULES.items()
         if name != "shared_gumbel" for draws in rule.draws]
CASES += [("match", Draws.ARBITRARY), ("match", Draws.WITH_REPLACEMENT),
          ("k_seq", Draws.WITH_REPLACEMENT)]
CHILDREN = ((2,), (2, 1))
# Level by level: where one child of the root is nearly certain of its child,
# that child's child takes the place of the other child of the root.
PEAKED = np.array([[.334, .333, .333], [.02, .96, .02], [.334, .333, .333]])


def shared(trees, number, score=shared_nodes.expected_acceptance, rows=1):
  """Trees of each row, in all draws of several rows, of which their common
  budget of `number` nodes has dropped the others."""
  scores = np.where(trees.tree.valid, score(trees.layout, trees.tree), -np.inf)
  draws = np.indices((len(scores),) * rows).reshape(rows, -1).T
  chosen = np.asarray(jax.jit(jax.vmap(functools.partial(
      shared_nodes.choose, number=number)))(scores[draws]))
  probs = trees.probs[draws].prod(axis=1)
  for row in range(rows):
    tree = jax.tree.map(lambda x: x[draws[:, row]], trees.tree)
    yield trees._replace(probs=probs, tree=tree.replace(
        valid=tree.valid & chosen[:, row]))


def verifier(rule, draws):
  return OTHERS.get(rule) or verifiers.of_name(rule, [draws])[1]


@functools.lru_cache(maxsize=None)
def drawn(draws, zeros=(0, 0)):
  """All trees that are drawn so, and the tables."""
  target, draft = exactness.random_tables(3, *zeros)
  if draws == Draws.PRUNED:
    return target, *shared(enumeration.beams(draft, 2, 2), 2)
  if draws == Draws.ONE_IN_BEAM:
    return target, enumeration.beams_with_one_sample(draft, 3, 2)
  if draws == Draws.WITH_REPLACEMENT:
    return target, enumeration.merged_paths(draft, (2, 1))
  return target, enumeration.fixed_trees(draft, CHILDREN, draws)


@pytest.mark.parametrize("zeros", [(0, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("rule, draws", CASES, ids=str)
def test_every_rule_and_way_to_draw(rule, draws, zeros):
  """Control: children of a drafter, taken for another's."""
  target, trees = drawn(draws, zeros)
  error = functools.partial(enumeration.error, verifier(rule, draws),
                            target=target)
  assert error(trees) < (OF_INTEGRALS if rule == "global_resolution" else
                         TOLERANCE)
  if rule != "match" and not any(zeros):
    assert error(trees._replace(tree=trees.tree.replace(
        log_probs=trees.tree.log_probs[..., ::-1]))) > 1e-3


@pytest.mark.parametrize("rule, zeros", [
    ("recursive", 0), ("recursive", 1), ("traversal", 0), ("layer", 0)])
def test_a_stochastic_beam(rule, zeros):
  target, draft = exactness.random_tables(3, zeros, zeros)
  trees = enumeration.beams(draft, 2, 2)
  assert enumeration.error(verifier(rule, Draws.WITHOUT_REPLACEMENT), trees,
                           target) < TOLERANCE


def texts(subject, trees, target):
  """Distributions of texts, of equal trees enumerated once."""
  _, first, again = np.unique(
      np.concatenate([trees.tree.tokens, trees.tree.parents, trees.tree.valid],
                     axis=1), axis=0, return_index=True, return_inverse=True)
  tree = jax.tree.map(lambda x: x[first], trees.tree)
  return enumeration.texts(subject, trees._replace(tree=tree), target)[0][again]


@pytest.mark.parametrize("rule", verifiers.names([Draws.PRUNED]))
def test_two_rows_that_share_a_budget(rule):
  """Control: nodes chosen by their own probability."""
  target, draft = exactness.random_tables(3)
  trees = enumeration.beams(draft, 2, 2)
  expected = exactness.joint_distribution(target, 0, 3)
  for score, is_exact in ((shared_nodes.expected_acceptance, True),
                          (best_first_trees.path_log_probs, False)):
    first, second = shared(trees, 3, score, rows=2)
    assert len({*first.tree.valid.sum(axis=1).tolist()}) > 1
    probs = [texts(verifier(rule, Draws.PRUNED), x, target)
             for x in (first, second)]
    joint = np.einsum("n,nabc,ndef->abcdef", first.probs, *probs, optimize=True)
    error = np.abs(joint - np.multiply.outer(expected, expected)).max()
    assert error < TOLERANCE if is_exact else error > 1e-4


@pytest.mark.parametrize("noise_of", [0, 1])
def test_shared_noise_decides_the_text_whatever_the_tree_is(noise_of):
  """All outcomes of the noise. Control: outcomes of the level below."""
  _, trees = drawn(Draws.PRUNED)
  levels = noise_of + tree_lib.depths(trees.layout)
  tree = trees.tree.replace(noise_keys=jax.random.split(jax.random.key(0), (
      len(trees.probs), 3)))
  warper = jax.tree.map(lambda x: x[0], sampling.make_warper(
      dj.Sampling(), 1, 3))
  walk = jax.jit(jax.vmap(lambda tree, text: shared_gumbel.walk(
      None, trees.layout, tree, 1e9 * jax.nn.one_hot(text[levels], 3), warper),
                          (0, None)))
  same = []
  for text in map(np.array, itertools.product(range(3), repeat=4)):
    verdict = jax.tree.map(np.asarray, walk(tree, text))
    for path, accepted, token, tokens in zip(
        verdict.path, verdict.num_accepted, verdict.token, tree.tokens):
      emitted = [*tokens[path[1:1 + accepted]], token]
      same.append(emitted == text[:1 + accepted].tolist())
  assert all(same) == (noise_of == 0)


def test_control_a_choice_that_is_taken_for_a_sample():
  def choose(mass, draft, tokens, valid):
    return path_blocks.greedy(mass, draft, tokens, valid)._replace(law=draft)

  target, trees = drawn(Draws.WITH_REPLACEMENT)
  assert enumeration.error(path_blocks.verifier(choose), trees, target) > 1e-3


@pytest.mark.long
def test_control_budgets_that_are_refused():
  """Rheo and layer verification, whose samples or levels a budget changes."""
  target, draft = (np.tile(x, (3, 1)) for x in ((.2, .3, .5), (.6, .3, .1)))
  probs, _ = enumeration.joint_distribution(
      verifier("rheo", Draws.ONE_IN_BEAM),
      *shared(enumeration.beams_with_one_sample(draft, 2, 1), 1), target)
  np.testing.assert_allclose(probs.sum(axis=1), [0, .75, .25])
  target = np.array([[.2, .2, .6], [.3, .5, .2], [.6, .2, .2]])
  trees, = shared(enumeration.beams(PEAKED, 2, 3), 3)
  error = lambda rule, draws: enumeration.error(verifier(rule, draws), trees,
                                                target)
  assert error("layer", Draws.WITHOUT_REPLACEMENT) > 0.003
  assert error("traversal", Draws.PRUNED) < TOLERANCE
