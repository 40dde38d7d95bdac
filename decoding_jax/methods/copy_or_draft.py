"""Copies of the text where it repeats itself, else a drafted chain."""

from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.types import Draws, Method
from decoding_jax.validation import values

EXAMPLES = ({"depth": 1, "copies": 2, "min_ngram": 1},
            {"depth": 2, "copies": 3, "min_ngram": 2})


def make(depth: int, copies: int = 8, min_ngram: int = 3,
         max_ngram: int = 8) -> Method:
  """Makes a chain of a draft model, or of a head, or of copied tokens.

  Where the last tokens have occurred before, what came after them is drafted,
  as by `prompt_lookup`; elsewhere the draft model drafts, as by `speculative`
  (after SAM decoding, arXiv 2411.10666). Block verification serves both.

  Args:
    depth: tokens that the model drafts.
    copies: tokens that are copied, at most; `depth` or more.
    min_ngram: last tokens that must have occurred before.
    max_ngram: tokens that are compared, at most; of several occurrences the
      latest one of the longest match is copied.

  Returns:
    The method.

  Raises:
    ValueError: naming the size, its value and what is allowed.
  """
  values.check_positive("depth", depth)
  _, verifier, draws = verifiers.of_name("traversal",
                                         {Draws.WITHOUT_REPLACEMENT})
  sizes, chain = (copies, min_ngram, max_ngram), (1,) * depth
  return Method(
      f"copy_or_draft({depth}, copies={copies}, ngram={min_ngram}-{max_ngram})",
      sampled=verifiers.pair(drafters.copied_or(
          expanders.product_tree(chain, draws), *sizes), verifier),
      greedy=verifiers.pair(drafters.copied_or(
          expanders.top_k(chain), *sizes), verifiers.match()))
