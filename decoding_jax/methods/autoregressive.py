"""One token a target call: a tree of a root."""

import functools

from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Method


@functools.lru_cache(maxsize=None)
def make() -> Method:
  """Plain decoding, the baseline; needs no drafter.

  Returns:
    The method.
  """
  alone = expanders.gumbel_top_k(())
  return Method("autoregressive",
                sampled=verifiers.pair(alone,
                                       verifiers.recursive(replacement=False)),
                greedy=verifiers.pair(alone, verifiers.match()))
