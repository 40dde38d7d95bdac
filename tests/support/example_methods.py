"""Methods that keep the target's distribution, for tests of each of them."""

import pytest

import decoding_jax as dj

METHODS = (
    dj.methods.autoregressive(), dj.methods.speculative(3),
    dj.methods.rsd_c((2, 2)), dj.methods.rsd_s(3, 2),
    dj.methods.rsd_s(3, 2, "traversal"),
    dj.methods.specinfer(2, 2), dj.methods.spectr(2, 2))
DRAFTING = METHODS[1:]


def each(methods):
  """Runs a test with `method` for each of these."""
  return pytest.mark.parametrize("method", methods, ids=lambda m: m.name)


EACH = each(METHODS)
EACH_DRAFTING = each(DRAFTING)


def depth(method):
  """Levels of a method's tree."""
  return len(method.sampled.drafter.layout.widths)
