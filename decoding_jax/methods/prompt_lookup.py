"""Prompt lookup (Saxena 2023): what came after the last tokens before."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = ({"depth": 2}, {"depth": 2, "num_paths": 2})


def make(depth: int, num_paths: int = 1, max_ngram: int = 3) -> Method:
  """Makes prompt lookup: drafts what followed before, without a model.

  Args:
    depth: tokens of a continuation.
    num_paths: occurrences, the latest ones of the longest match.
    max_ngram: tokens that are compared, at most.

  Returns:
    The method. `draft_params`, if given, are `[C]` int32: tokens of other texts
    that are searched as well, -1 between two texts.
  """
  values.check_positive("depth", depth)
  drafter = drafters.prompt_lookup(depth, num_paths, max_ngram)
  return verifiers.matched(
      f"prompt_lookup({num_paths}x{depth}, {max_ngram})", drafter)
