"""One token a target call: a tree of a root."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method

EXAMPLES = ({},)


def make() -> Method:
  """Plain decoding, the baseline; needs no drafter.

  Returns:
    The method.
  """
  alone = drafters.gumbel_top_k(())
  return Method("autoregressive",
                sampled=verifiers.pair(alone,
                                       verifiers.recursive(replacement=False)),
                greedy=verifiers.pair(alone, verifiers.match()))
