"""The check of drafters that users have: ours pass, broken ones do not."""

import functools

import jax.numpy as jnp
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, expanders, tree as tree_lib
from decoding_jax.testing import drafter_conformance
from decoding_jax.types import SAMPLED

TABLE = drafters.token_recycling((2, 2), 2)
LOOKUP = drafters.prompt_lookup(2, 2, 2)
SUFFIX = drafters.suffix(4, 2, 4, 3, 0.1, 4.0)
BEAM = drafters.of_model(expanders.stochastic_beam(2, 2))
PATHS = drafters.of_model(expanders.iid_paths(2, 2))
CHAIN = drafters.of_model(expanders.gumbel_tree((1, 1)))


def check(drafter, rows=256):
  drafter_conformance.check_drafter(drafter, rows=rows)


@pytest.mark.cases(1)
@pytest.mark.parametrize("drafter", [TABLE, LOOKUP, SUFFIX, BEAM, PATHS],
                         ids=["table", "lookup", "suffix", "beam", "paths"])
def test_our_drafters_conform(drafter):
  check(drafter, 2000 if drafter.draws in SAMPLED else 256)


def with_tree(drafter, change):
  """The drafter, whose trees are changed."""
  def propose(keys, context, state):
    tree, pending = drafter.propose(keys, context, state)
    return change(tree), pending

  return drafter._replace(propose=propose)


def counting(step):
  """A chain of one token that a row's own counter chooses; see `step`."""
  def init(context, state):
    del context
    return state.replace(carry=jnp.zeros_like(state.length))

  def propose(keys, context, state):
    del keys
    tree = tree_lib.root(state.tokens[jnp.arange(len(state.length)),
                                      state.length - 1], 1)
    token = (state.carry % context.target.vocab_size)[:, None]
    return tree_lib.from_parents(
        tree.tokens.at[:, 1:].set(token), tree.parents.at[:, 1].set(0),
        tree.valid.at[:, 1].set(True)), None

  def observe(context, before, after, seen):
    del context
    return after.replace(carry=step(before.carry, seen.count))

  return dj.Drafter(tree_lib.free_layout(1, 1, 1), init, propose, observe, 0)


def test_a_drafter_of_ones_own_conforms():
  check(counting(lambda carry, count: carry + count))


def altered(name, change):
  return functools.partial(with_tree, change=lambda tree: tree.replace(
      **{name: change(getattr(tree, name))}))


def orphaned(tree):
  """The first node is not valid any more, and what hangs from it is."""
  return tree.replace(valid=tree.valid.at[:, 1].set(False))


@pytest.mark.cases(4)
@pytest.mark.parametrize("drafter, message", [
    (altered("tokens", lambda x: x[:, :-1])(CHAIN),
     r"DraftTree.tokens: int32 of shape \(256, 3\) is needed, and int32 of "
     r"shape \(256, 2\)"),
    (altered("valid", lambda x: x.astype(jnp.int32))(CHAIN),
     "DraftTree.valid: bool of shape"),
    (altered("log_probs", lambda x: None)(CHAIN),
     "DraftTree.log_probs: float32 of shape .* and None is given"),
    (altered("parents", lambda x: x.at[:, 1].set(2))(CHAIN),
     r"node 1: its parent must have a lower index \(found: 2\)"),
    (altered("mask", jnp.ones_like)(BEAM), "node 0: its mask must be itself"),
    (altered("tokens", lambda x: x.at[:, 1].set(6))(CHAIN),
     r"node 1: .* token must be in 0..5 \(found: 6\)"),
    (with_tree(CHAIN, orphaned), "node 2: it is valid, but its parent is not"),
    (altered("tokens", lambda x: x.at[:, 0].add(1))(CHAIN),
     "node 0: the root is the newest token"),
    (drafters.of_model(expanders.top_k((2,)))._replace(
        draws=dj.Draws.WITHOUT_REPLACEMENT),
     "the children are no samples without replacement of `log_probs`"),
    (PATHS._replace(draws=dj.Draws.WITHOUT_REPLACEMENT), "are no samples"),
    (BEAM._replace(draws=dj.Draws.WITH_REPLACEMENT),
     "are no independent samples"),
    (counting(lambda carry, count: carry + jnp.where(
        count > 0, jnp.cumsum(count), 0)), "alone it has another tree"),
    (counting(lambda carry, count: carry + 1),
     "step 1, row 0: the row was done, and its state changes"),
    (counting(lambda carry, count: (carry + count).astype(jnp.float32)),
     "carry has other shapes or types after a step"),
    (CHAIN._replace(layout=tree_lib.free_layout(2, 1, 1)),
     r"node 2: it is deeper than FreeLayout.depth=1 \(found: 2\)"),
], ids=["shape", "type", "no_log_probs", "parents", "mask", "vocabulary",
        "descendants", "root", "top_k", "with", "without", "leak", "done",
        "carry", "depth"])
def test_broken_drafters_are_told(drafter, message):
  with pytest.raises(AssertionError, match=message):
    check(drafter, 2000 if "samples" in message else 256)
