"""Methods that keep the target's distribution, for tests of each of them."""

import pytest

import decoding_jax as dj
from decoding_jax.speculation import tree as tree_lib


def drafting_and_verifying():
  """Returns the examples of all methods that are a drafter and a verifier."""
  return tuple(method for result in dj.methods.examples().values()
               for method in result if isinstance(method.sampled, dj.Pair))


def depth(method):
  """Returns the levels of a method's tree."""
  return tree_lib.depth(method.sampled.drafter.layout)


def drafts_by_a_model(method):
  """Tells whether a method runs a draft model, once for each level.

  A model that drafts several levels by one call is not told of the tokens
  between them: what it drafts is another distribution than the tests know.
  """
  return method.sampled.drafter.calls == depth(method) > 0


def samples_drafts(method):
  """Tells whether drafts of the target itself are accepted whatever they are.

  The most probable tokens, such as those of a best-first tree, are not what a
  target that samples will say; a beam of such tokens may lack its sample.
  """
  return method.sampled.drafter.draws not in (
      dj.Draws.ARBITRARY, dj.Draws.ONE_IN_BEAM) and whole_trees(method)


def whole_trees(method):
  """Tells whether each row has all nodes, in whatever batch it is."""
  return not method.name.startswith(("shared_budget", "adaptive"))


def each(methods):
  """Runs a test with `method` for each of these."""
  return pytest.mark.parametrize("method", methods, ids=lambda m: m.name)


PAIRS = drafting_and_verifying()
DRAFTING = tuple(filter(drafts_by_a_model, PAIRS))
# Those whose drafts depend on nothing but the newest token and the draft model.
SAMPLING = tuple(filter(samples_drafts, DRAFTING))
METHODS = (dj.methods.autoregressive(), *DRAFTING)
EACH = each(METHODS)
EACH_DRAFTING = each(DRAFTING)
EACH_SAMPLING = each(SAMPLING)
