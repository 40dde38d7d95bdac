"""One token a target call: a tree of a root."""

import functools

from decoding_jax import draft, verify
from decoding_jax.types import Method


@functools.lru_cache(maxsize=None)
def make() -> Method:
  """Plain decoding, the baseline; needs no drafter.

  Returns:
    The method.
  """
  alone = draft.gumbel_top_k(())
  return Method("autoregressive",
                sampled=verify.pair(alone, verify.recursive(replacement=False)),
                greedy=verify.pair(alone, verify.match()))
