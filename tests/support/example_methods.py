"""Methods that keep the target's distribution, for tests of each of them."""

import pytest

import decoding_jax as dj


def drafting_and_verifying():
  """Returns the examples of all methods that are a drafter and a verifier."""
  return tuple(method for found in dj.methods.examples().values()
               for method in found if isinstance(method.sampled, dj.Pair))


def depth(method):
  """Returns the levels of a method's tree."""
  return len(method.sampled.drafter.layout.widths)


def each(methods):
  """Runs a test with `method` for each of these."""
  return pytest.mark.parametrize("method", methods, ids=lambda m: m.name)


METHODS = drafting_and_verifying()
EACH = each(METHODS)
EACH_DRAFTING = each([method for method in METHODS if depth(method)])
