"""Autoregressive decoding: one token a target call."""

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method

EXAMPLES = ({},)


def make() -> Method:
  """Makes plain decoding, the baseline, which needs no drafter.

  It is a tree of a root alone.
  """
  root = expanders.gumbel_tree(())
  return Method("autoregressive",
                sampled=verifiers.pair(root,
                                       verifiers.recursive(replacement=False)),
                greedy=verifiers.pair(root, verifiers.match()))
