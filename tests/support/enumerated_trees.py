"""Enumerated verification of trees whose children are all drawn in one way."""

import functools

import numpy as np

from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.verifiers import conditional_transport
from decoding_jax.testing import enumeration, exactness
from decoding_jax.types import Draws

TOLERANCE = 1e-10
run, continued = enumeration.run, enumeration.continued
without_replacement = functools.partial(enumeration.siblings,
                                        Draws.WITHOUT_REPLACEMENT)
greedy_and_sample = functools.partial(enumeration.siblings, Draws.ONE_SAMPLED)


def shape(children):
  """Layout and parents `[M]` of a static tree."""
  return tree_lib.static_layout(children), enumeration.parents_of(children)


def static_trees(draft, layout, parents, tokens, valid):
  """A batch of trees, `[n, ...]`."""
  return enumeration.as_tree(draft, layout, tokens,
                             np.tile(parents, (len(tokens), 1)), valid)


@functools.lru_cache(maxsize=None)
def by_transport(children):
  """Returns `conditional_transport.find` in the form of other searches."""
  layout = tree_lib.static_layout(children)
  return lambda uniforms, size, tree, probs: conditional_transport.find(
      uniforms, layout, tree, probs)


def joint_distribution(find, target, draft, children,
                       draws=without_replacement):
  """The distribution of the first tokens of a call, and its expected tokens."""
  return enumeration.joint_distribution(find, enumeration.fixed_trees(
      draft, children, *draws.args), target)


def wrong(probs, target):
  expected = exactness.joint_distribution(target, 0, probs.ndim)
  return np.abs(probs - expected).max() > TOLERANCE
