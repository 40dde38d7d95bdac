"""A masked-diffusion model drafts all tokens of a tree by one forward."""

from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.types import Draws, Method
from decoding_jax.validation import values

EXAMPLES = (dict(branching=(2, 1), window=4),)


def make(branching, window: int = 64, verification: str = verifiers.USUAL
         ) -> Method:
  """Makes a method whose draft model is a masked-diffusion model.

  The draft model comes from `canvas.as_draft`: it fills masked positions after
  the text. As for DFlash (arXiv 2602.06036) one forward drafts a block; the
  distribution of the drafts is a product, of which siblings are drawn without
  replacement.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1; all 1 for a
      chain.
    window: last tokens of the text that the draft model reads.
    verification: any of `verifiers.RULES` for siblings without replacement.

  Returns:
    The method: one call of the draft model a step.
  """
  branching = values.integers("branching", branching)
  values.check_positive("depth of branching", len(branching))
  suffix, verifier, draws = verifiers.of_name(
      verification, (Draws.WITHOUT_REPLACEMENT,))
  drafted = drafters.masked(expanders.product_tree(branching, draws), window)
  best = drafters.masked(expanders.top_k(branching), window)
  return Method(
      f"masked_draft({'-'.join(map(str, branching))}{suffix}, {window})",
      sampled=verifiers.pair(drafted, verifier),
      greedy=verifiers.pair(best, verifiers.match()))
