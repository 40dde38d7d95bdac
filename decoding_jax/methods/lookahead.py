"""Lookahead decoding (arXiv 2402.02057): n-grams of a Jacobi iteration."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = ({"ngram": 3, "window": 3, "guesses": 2},)


def make(ngram: int = 5, window: int = 7, guesses: int = 7,
         buckets: int = 4096, from_prompt: bool = True) -> Method:
  """Makes lookahead decoding: drafts the target's own guesses.

  Args:
    ngram: N, tokens of what is pooled; N - 1 of them are drafted.
    window: W, positions that are guessed at a time: a target call scores
      W * (N - 1) guesses, which are never tested.
    guesses: n-grams that are kept of a bucket and drafted, at most V.
    buckets: of the pool, for the tokens that n-grams begin with; V at most.
    from_prompt: whether the pool begins with the n-grams of the prompt.

  Raises:
    ValueError: if a size is not a positive integer, or `ngram` less than 2.
  """
  for name, value in (("ngram", ngram), ("window", window),
                      ("guesses", guesses), ("buckets", buckets)):
    values.check_positive(name, value)
  values.check_number("ngram", ngram, low=2)
  drafter = drafters.lookahead(ngram, window, guesses, buckets, from_prompt)
  sizes = f"{ngram}, {window}x{guesses}, buckets={buckets}"
  return verifiers.matched(
      f"lookahead({sizes}{'' if from_prompt else ', no prompt'})", drafter)
