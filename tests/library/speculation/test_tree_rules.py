"""Rules that see a whole tree: exact by enumeration and by texts, and pairs."""

import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.speculation.verifiers import (
    conditional_transport, layers, path_blocks, shared_gumbel, traversal)
from decoding_jax.testing import enumeration, exactness
from support import helpers
from support.example_methods import each

V, ROWS, LENGTH = 4, 50_000, 4
methods, Draws = dj.methods, dj.Draws
CHAIN, PAIRS = ((1,), (1,), (1,)), ((2,), (2, 2))
DEEP, UNEVEN = ((2,), (2, 0), (1, 2)), ((3,), (2, 0, 1))
# Rule and draws, vocabulary, zeros of target and draft, children of each node
# level after level; beside those of test_enumeration.
TREES = [
    (rule, draws, *tree) for rule, draws, trees in (
        ("recursive", Draws.WITHOUT_REPLACEMENT, ((2, (0, 0), DEEP),)),
        ("traversal", Draws.WITHOUT_REPLACEMENT, (
            (3, (0, 0), PAIRS), (4, (1, 2), ((3,),)), (3, (0, 0), CHAIN),
            (3, (0, 0), ((2,), (1, 1))), (2, (0, 0), DEEP))),
        ("layer", Draws.WITHOUT_REPLACEMENT, (
            (3, (0, 0), PAIRS), (4, (1, 2), ((3,),)), (2, (0, 0), DEEP))),
        # With two tokens of mass, not more than one is fixed.
        ("conditional_ot", Draws.ONE_SAMPLED, (
            (3, (0, 0), PAIRS), (4, (1, 0), ((3,),)),
            (4, (0, 2), ((3,), (1, 0, 1))), (3, (0, 2), ((2,), (0, 1))))))
    for tree in trees]


@pytest.mark.cases(3)
@pytest.mark.parametrize("rule, draws, size, zeros, children", TREES, ids=str)
def test_joint_distribution_of_a_call(rule, draws, size, zeros, children):
  target, draft = exactness.random_tables(size, *zeros)
  verifier = verifiers.of_name(rule, [draws])[1]
  trees = enumeration.fixed_trees(draft, children, draws)
  assert enumeration.error(verifier, trees, target) < 1e-12


@pytest.mark.parametrize("rule", ["recursive", "traversal", "layer"])
def test_control_children_in_another_order(rule):
  """Siblings drawn in one order, and tested in that of their ids."""
  target, draft = exactness.random_tables(V)
  trees = enumeration.fixed_trees(draft, ((2,),))
  tokens = np.array(trees.tree.tokens)
  tokens[:, 1:].sort(axis=1)
  assert enumeration.error(
      verifiers.of_name(rule, [Draws.WITHOUT_REPLACEMENT])[1],
      trees._replace(tree=trees.tree.replace(tokens=tokens)), target) > 1e-3


@pytest.mark.long
def test_expected_tokens_of_layers():
  """On a chain as block verification does; on a tree, less than traversal."""
  target, draft = (np.tile(probs, (3, 1)) for probs in (
      [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]))
  for children in (((1,), (1,)), PAIRS):
    trees = enumeration.fixed_trees(draft, children)
    result, rival = (enumeration.joint_distribution(x, trees, target)[1]
                     for x in (layers.verifier(), traversal.of_tree))
    if children == PAIRS:
      assert result < rival
    else:
      np.testing.assert_allclose(result, rival, rtol=1e-9)


def test_layers_of_disjoint_supports_reject_everything():
  target, draft = np.tile([0.5, 0.5, 0, 0], (4, 1)), np.tile(
      [0, 0, 0.5, 0.5], (4, 1))
  chances, rests = enumeration.ends(
      layers.verifier(), enumeration.fixed_trees(draft, PAIRS), target)
  assert chances[0].tolist() == [1, 0, 0, 0, 0, 0, 0]
  np.testing.assert_allclose(rests[0, 0], target[0])


@pytest.mark.cases(2)
@pytest.mark.parametrize("method, length", [
    (methods.rsd_c((2, 2), "traversal"), 3),
    (methods.rsd_c((2, 2), "layer"), 3),
    (methods.rsd_c((2, 2), "conditional_ot"), 3),
    (methods.specinfer(1, 3, verification="gbv"), 4)])
def test_equal_distributions_accept_a_leaf(method, length):
  target, _ = exactness.random_tables(V)
  _, stats = exactness.frequencies(method, target, target, 1000, length)
  np.testing.assert_array_equal(stats.target_calls, 1)


@pytest.mark.cases(2)
@each([methods.rsd_s(2, 3, "layer"), methods.sequoia(UNEVEN),
       methods.sequoia(UNEVEN, "conditional_ot"),
       methods.specinfer(expansion=(3, 1), verification="global_resolution")])
def test_joint_distribution_of_texts(method):
  """Of what is in no `EXAMPLES`."""
  # The weights of transport are computed anew at each node.
  rows, length = (2000, 3) if "global" in method.name else (ROWS, LENGTH)
  result = dj.testing.assert_exact(method, *exactness.random_tables(V),
                                   rows=rows, length=length)
  assert 1 < result.target_calls < length


@pytest.mark.long
@each([methods.rsd_s(*sizes, "traversal") for sizes in ((2, 3), (3, 2))])
def test_joint_distribution_of_a_beam_of_a_cold_drafter(method):
  dj.testing.assert_exact(method, *exactness.random_tables(V), rows=100_000,
                          length=LENGTH, draft_sampling=dj.Sampling(1e-3))


@pytest.mark.parametrize("drafts, verifier, rows, length", [
    (methods.rsd_c((2, 2), "conditional_ot"), layers.verifier(), ROWS, LENGTH),
    (methods.rsd_c((2, 2)), conditional_transport.verifier(), ROWS, LENGTH)],
                         ids=["layer", "ot"])
def test_control_texts_of_other_draws(drafts, verifier, rows, length):
  helpers.check_wrong(dj.Pair(drafts.sampled.drafter, verifier), V, rows,
                      length)


GUMBEL, TOP = expanders.gumbel_tree((2, 2)), expanders.top_k((2, 2))
BEAM, IID = expanders.stochastic_beam(2, 2), expanders.iid_paths(2, 2)
SAMPLED = expanders.product_tree((2, 2), Draws.ONE_SAMPLED)
SHARED = expanders.product_tree((2, 2), Draws.SHARED_NOISE)
IN_BEAM = expanders.beam_tree(2, 2, Draws.ONE_IN_BEAM)


@pytest.mark.parametrize("drafter, verifier, words", [
    (SAMPLED, layers.verifier(), "Drafter.draws=ONE_SAMPLED"),
    (IID, layers.verifier(), "Drafter.draws=WITH_REPLACEMENT"),
    (IID, traversal.verifier(), "Drafter.draws=WITH_REPLACEMENT"),
    (IN_BEAM, conditional_transport.verifier(), "draws=ONE_IN_BEAM"),
    (BEAM, conditional_transport.by_node(), "takes=ONE_SAMPLED, ONE_IN_BEAM"),
    *((drafter, conditional_transport.verifier(), "Verifier.takes=ONE_SAMPLED")
      for drafter in (GUMBEL, TOP, BEAM)),
    *((drafter, path_blocks.gbv(), "Verifier.takes=WITH_REPLACEMENT")
      for drafter in (GUMBEL, TOP, SAMPLED)),
    *((drafter, shared_gumbel.verifier(), "Verifier.takes=SHARED_NOISE")
      for drafter in (GUMBEL, TOP, BEAM)),
    *((drafter, verifier, f"Drafter.draws={draws}")
      for drafter, draws in ((SAMPLED, "ONE_SAMPLED"), (SHARED, "SHARED_NOISE"))
      for verifier in (verifiers.recursive(False), traversal.verifier()))])
def test_wrong_pairs_are_refused(drafter, verifier, words):
  with pytest.raises(ValueError, match=words):
    verifiers.pair(drafter, verifier)


def test_what_takes_children_of_any_draws():
  for drafter in (SAMPLED, SHARED):
    assert verifiers.pair(drafter, verifiers.sample_and_match())


_FIXED = ("'recursive', 'traversal', 'layer', 'conditional_ot', 'rheo', "
          "'shared_gumbel'")
_BEAMS = "'recursive', 'traversal', 'layer', 'rheo', 'shared_gumbel'"


@pytest.mark.parametrize("make, name, known", [
    (lambda x: methods.rsd_s(2, 2, x), "blocks", _BEAMS),
    (lambda x: methods.rsd_s(2, 2, x), "conditional_ot", _BEAMS),
    (lambda x: methods.rsd_c((2,), x), None, _FIXED),
    (lambda x: methods.rsd_c((2, 2), x), "gbv", _FIXED),
    (lambda x: methods.sequoia(((2,),), x), "", _FIXED),
    (lambda x: methods.speculative(2, x), "match", _FIXED),
    (lambda x: methods.specinfer(2, 2, verification=x), "layer", "'rec")])
def test_unknown_verification(make, name, known):
  words = f"verification={name!r}: one of {known}"
  with pytest.raises(ValueError, match=words):
    make(name)


def test_shared_budgets_take_no_sample_in_a_beam():
  """It is a sample of what a dropped sibling leaves."""
  with pytest.raises(ValueError, match="draws=dj.Draws.ONE_IN_BEAM: one of"):
    drafters.shared(1, 2, 1, 1, Draws.ONE_IN_BEAM)
