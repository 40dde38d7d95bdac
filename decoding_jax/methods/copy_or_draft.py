"""Copies of the text where it repeats itself, else a drafted chain."""

from decoding_jax.speculation import drafters, expanders, verifiers
from decoding_jax.types import Draws, Method
from decoding_jax.validation import values

EXAMPLES = ({"depth": 1, "copies": 2, "min_ngram": 1},
            {"depth": 2, "copies": 3, "min_ngram": 2},
            {"depth": 1, "copies": 3, "min_ngram": 1, "width": 2})


def make(depth: int, copies: int = 8, min_ngram: int = 3,
         max_ngram: int = 8, width: int = 1) -> Method:
  """Makes a chain of copied tokens, or what a draft model or a head drafts.

  Where the last tokens have occurred before, what came after them is drafted,
  as by `prompt_lookup`; elsewhere the draft model drafts, as by `speculative`
  or, of one level, `rsd_s` (after SAM decoding, arXiv 2411.10666). Traversal
  verification serves all.

  Args:
    depth: tokens that the model drafts.
    copies: tokens that are copied, at most; `depth` or more.
    min_ngram: last tokens that must have occurred before.
    max_ngram: tokens that are compared, at most; of several occurrences the
      latest one of the longest match is copied.
    width: tokens that the model drafts as siblings, without replacement; more
      than one are of one level. Of a head they cost no forward.
  """
  values.check_positives(depth=depth, width=width)
  if width > 1 and depth > 1:
    raise ValueError(f"width={width}, depth={depth}: depth=1 is needed for "
                     "more than one sibling.")
  _, verifier, draws = verifiers.of_name("traversal",
                                         {Draws.WITHOUT_REPLACEMENT})
  sizes, branching = (copies, min_ngram, max_ngram), (width,) * depth
  return Method(
      f"copy_or_draft({depth}, copies={copies}, min_ngram={min_ngram}, "
      f"max_ngram={max_ngram}{f', width={width}' * (width > 1)})",
      sampled=verifiers.pair(drafters.copied_or(
          expanders.product_tree(branching, draws), *sizes), verifier),
      greedy=verifiers.pair(drafters.copied_or(
          expanders.top_k(branching), *sizes), verifiers.match()))
