"""The accept rules, enumerated in float64; and which pairs are refused."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.testing import enumeration, exactness
from decoding_jax.types import Draws, Pair

TOLERANCE = 1e-12
# And what draws the children.
RULES = {
    "without replacement": (verifiers.recursive(False),
                            Draws.WITHOUT_REPLACEMENT),
    "with replacement": (verifiers.recursive(True), Draws.WITH_REPLACEMENT),
    "k_seq": (verifiers.k_seq(), Draws.WITH_REPLACEMENT),
}


def distributions(vocab_size, zeros):
  """A target and a draft distribution, reproducible."""
  rng = np.random.default_rng((vocab_size, zeros))
  return (exactness.random_probs(rng, vocab_size, zeros),
          exactness.random_probs(rng, vocab_size, zeros))


def enumerate_distribution(name, target, draft, size, draws=None):
  """The distribution `[V]` of a token, and the probability of any child."""
  verifier, own = RULES[name]
  target, draft = (np.tile(x, (len(x), 1)) for x in (target, draft))
  probs, tokens = enumeration.joint_distribution(
      verifier, enumeration.fixed_trees(draft, ((size,),), draws or own),
      target)
  return probs.sum(axis=1), tokens - 1


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("vocab_size, size, zeros",
                         [(2, 1, 0), (2, 2, 0), (3, 2, 0), (3, 3, 1),
                          (4, 3, 0), (5, 3, 2)])
def test_rule_emits_the_target_distribution(name, vocab_size, size, zeros):
  target, draft = distributions(vocab_size, zeros)
  probs, _ = enumerate_distribution(name, target, draft, size)
  np.testing.assert_allclose(probs, target, atol=TOLERANCE, rtol=0)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", RULES)
def test_disjoint_supports_and_one_child(name):
  """The former reject everything; one child is plain rejection, by which equal
  distributions accept it always."""
  target, draft = np.array([0.3, 0.7, 0, 0]), np.array([0, 0, 0.6, 0.4])
  probs, some = enumerate_distribution(name, target, draft, 2)
  np.testing.assert_allclose(probs, target, atol=TOLERANCE)
  assert some == 0
  for target, draft in (distributions(5, 1), distributions(4, 0)[:1] * 2):
    _, some = enumerate_distribution(name, target, draft, 1)
    np.testing.assert_allclose(some, np.minimum(target, draft).sum(),
                               atol=TOLERANCE)


def test_without_replacement_accepts_most():
  _, some = enumerate_distribution("without replacement", *distributions(2, 0),
                                   2)
  np.testing.assert_allclose(some, 1, atol=TOLERANCE)
  target, draft = distributions(5, 0)
  accepted = {
      name: enumerate_distribution(name, target, draft, 3)[1] for name in RULES
  }
  assert accepted["without replacement"] > accepted["with replacement"]
  assert accepted["without replacement"] > accepted["k_seq"]


def test_k_seq_division_solves_its_equation():
  target, draft = distributions(5, 0)
  with jax.enable_x64(True):
    rho, beta = map(float, verifiers.k_seq_rho(
        jnp.asarray(target), jnp.asarray(draft), 3))
  np.testing.assert_allclose(1 - (1 - beta)**3, rho * beta, atol=1e-8)
  assert 1 - (1 - beta)**3 <= rho * beta


@pytest.mark.parametrize("verified, draws", [
    ("without replacement", Draws.ARBITRARY),
    ("without replacement", Draws.WITH_REPLACEMENT),
    ("with replacement", Draws.WITHOUT_REPLACEMENT),
    ("k_seq", Draws.WITHOUT_REPLACEMENT)])
def test_control_other_draws_change_the_distribution(verified, draws):
  target, draft = distributions(4, 0)
  probs, _ = enumerate_distribution(verified, target, draft, 2, draws)
  assert np.abs(probs - target).max() > 1e-3


def test_worked_example_of_the_docstring():
  rank, rest = verifiers.recursive(False).rule(
      jnp.array([0.9, 0.9]), jnp.array([0.5, 0.3, 0.2]),
      jnp.array([0.2, 0.5, 0.3]), jnp.array([1, 0]), jnp.array([True, True]))
  assert rank == 1
  np.testing.assert_allclose(rest, [1, 0, 0], atol=1e-6)


def test_rejected_sibling_has_no_residual():
  target, draft = distributions(4, 0)
  token = int(np.argmax(draft - target))
  rank, rest = verifiers.recursive(True).rule(
      jnp.ones(1), jnp.asarray(target, jnp.float32),
      jnp.asarray(draft, jnp.float32), jnp.array([token]), jnp.array([True]))
  assert rank == -1 and rest[token] == 0


@pytest.mark.parametrize("name", RULES)
def test_residual_without_mass_keeps_the_distribution(name):
  probs = jnp.array([0.25, 0.75])
  _, rest = RULES[name][0].rule(jnp.ones(2), probs, probs, jnp.array([0, 1]),
                                jnp.array([False, False]))
  np.testing.assert_array_equal(rest, probs)


def test_match_follows_the_best_token_and_nothing_impossible():
  target = jnp.array([0.0, 1.0, 0.0])
  rule = verifiers.match().rule
  valid = jnp.array([True, True])
  rank, rest = rule(None, target, None, jnp.array([2, 1]), valid)
  assert rank == 1
  np.testing.assert_array_equal(rest, target)
  assert rule(None, target, None, jnp.array([2, 0]), valid)[0] == -1
  assert rule(None, target, None, jnp.array([2, 1]), ~valid)[0] == -1
  # A uniform of zero does not accept what cannot be.
  rank, _ = verifiers.recursive(False).rule(
      jnp.zeros(1), jnp.array([1.0, 0.0]), jnp.array([0.5, 0.5]),
      jnp.array([1]), jnp.array([True]))
  assert rank == -1


WITHOUT, WITH = expanders.gumbel_tree((2,)), expanders.iid_paths(2, 1)
BEAM, CHAIN = expanders.stochastic_beam(2, 1), expanders.gumbel_tree((1, 1))
TOP, TOP_BEAM = expanders.top_k((2,)), expanders.top_beam(2, 1)
OF_PAIRS = {
    "with": verifiers.recursive(True), "without": verifiers.recursive(False),
    "k_seq": verifiers.k_seq(), "match": verifiers.match()
}


@pytest.mark.parametrize("drafter, rule, words", [
    (TOP, "with", "Drafter.draws=ARBITRARY, Verifier.takes=WITH"),
    (TOP, "without", "Drafter.draws=ARBITRARY, Verifier.takes=WITH"),
    (TOP, "k_seq", "Drafter.draws=ARBITRARY, Verifier.takes=WITH"),
    (TOP_BEAM, "without", "Drafter.draws=ARBITRARY, Verifier.takes=WITH"),
    (expanders.top_k((1,)), "without",
     "recursive is exact for children that are samples without replacement or "
     "samples .* of a pruned tree; these are chosen in any way"),
    (WITHOUT, "with", "draws=WITHOUT_REPLACEMENT, Verifier.takes=WITH_REPL"),
    (WITHOUT, "k_seq", "draws=WITHOUT_REPLACEMENT, Verifier.takes=WITH_REPL"),
    (BEAM, "with", "draws=WITHOUT_REPLACEMENT, Verifier.takes=WITH_REPL"),
    (WITH, "without", "draws=WITH_REPLACEMENT, Verifier.takes=WITHOUT_REPL"),
])
def test_wrong_pairs_are_refused(drafter, rule, words):
  with pytest.raises(ValueError, match=words):
    verifiers.pair(drafter, OF_PAIRS[rule])


def test_a_verifier_has_to_say_what_it_takes():
  with pytest.raises(TypeError, match="takes"):
    dj.Verifier(verifiers.recursive(False).rule)


def test_the_table_of_rules():
  """It agrees with the verifiers, and with what is written by hand."""
  for name, rule in verifiers.RULES.items():
    suffix, verifier, draws = verifiers.of_name(name, dj.Draws)
    assert draws == rule.draws[0] and draws in verifier.takes
    assert verifier.takes <= {*rule.draws}
    assert suffix == ("" if name == verifiers.USUAL else f", {name}")
    for alias in filter(None, [rule.alias]):
      assert verifiers.of_name(alias, dj.Draws) == (suffix, verifier, draws)
  page = pathlib.Path("docs/verification.md").read_text("utf-8")
  rows = [line.split("|")[1] for line in page.split("## Rules")[1].split(
      "\n## ")[0].splitlines() if line.startswith("| `")]
  assert [re.findall(r"`(\w+)`", row) for row in rows] == [
      [name, *filter(None, [rule.alias])]
      for name, rule in verifiers.RULES.items()]


def test_aliases_are_the_same_method():
  chain, tree = dj.methods.speculative, dj.methods.rsd_c
  assert chain(2, "block") == chain(2, "traversal")
  assert chain(2, "token") == chain(2)
  assert tree((2, 1), "block") == tree((2, 1), "traversal")


@pytest.mark.parametrize("drafter, rule", [
    (WITHOUT, "without"), (BEAM, "without"), (WITH, "with"), (WITH, "k_seq"),
    # Of one child there is nothing to replace.
    (CHAIN, "with"), (CHAIN, "without"), (CHAIN, "k_seq"),
    (expanders.iid_paths(1, 2), "without"),
    (WITHOUT, "match"), (WITH, "match"), (TOP, "match"), (TOP_BEAM, "match"),
])
def test_right_pairs_are_not(drafter, rule):
  assert verifiers.pair(drafter, OF_PAIRS[rule]) == Pair(
      drafters.of_model(drafter), OF_PAIRS[rule])


# Children that nobody has drawn: any tokens, twins among them, some not valid.
CHILDREN = [((1,), (True,)), ((0, 2), (True, True)), ((3, 3, 1), (True,) * 3),
            ((2, 0, 1), (True, False, True)), ((0, 1, 2, 3), (True,) * 4),
            ((1, 2), (False, False))]


def error_at_a_node(verifier, target, tokens, valid):
  """What is wrong with these children of the root, of a flat drafter."""
  children = ((len(tokens),),)
  layout, size = tree_lib.static_layout(children), len(target)
  return enumeration.error(verifier, enumeration.Trees(
      layout, enumeration.as_tree(
          np.full((size, size), 1 / size), layout, np.array([[0, *tokens]]),
          enumeration.parents_of(children)[None], np.array([[True, *valid]])),
      np.ones(1)), np.tile(target, (size, 1)))


@pytest.mark.parametrize("tokens, valid", CHILDREN)
@pytest.mark.parametrize("zeros", [0, 2])
def test_sample_and_match_takes_any_children(tokens, valid, zeros):
  target, _ = distributions(4, zeros)
  assert error_at_a_node(verifiers.sample_and_match(), target, tokens,
                         valid) < TOLERANCE


def test_control_recursive_rejection_needs_samples():
  """Children that nobody has drawn, taken for samples of a flat drafter."""
  assert error_at_a_node(verifiers.recursive(False), distributions(4, 0)[0],
                         (0, 2), (True, True)) > 0.01


def test_sample_and_match_of_a_certain_token():
  """At temperature 0 the child that is the target's token is accepted."""
  rule = jax.jit(verifiers.sample_and_match().rule)
  rank, _ = rule(jnp.full(3, 1 - 2.0**-24), jnp.eye(5)[3], None,
                 jnp.array([1, 3, 3]), jnp.ones(3, bool))
  assert rank == 1
  rank, rest = rule(jnp.zeros(2), jnp.eye(5)[3], None, jnp.array([1, 2]),
                    jnp.ones(2, bool))
  assert rank == -1 and rest.tolist() == [0, 0, 0, 1, 0]
