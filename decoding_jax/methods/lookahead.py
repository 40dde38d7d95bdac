"""Lookahead decoding (arXiv 2402.02057): n-grams of a Jacobi iteration."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = ({"ngram": 3, "window": 3, "guesses": 2},)


def make(ngram: int = 5, window: int = 7, guesses: int = 7,
         buckets: int = 4096, from_text: bool = True, by_one: bool = True
         ) -> Method:
  """Makes lookahead decoding: drafts the target's own guesses.

  Args:
    ngram: N, tokens of what is pooled; N - 1 of them are drafted.
    window: W, positions that are guessed at a time: a target call scores
      W * (N - 1) guesses, which are never tested.
    guesses: n-grams that are kept of a bucket and drafted, at most V.
    buckets: of the pool, for the tokens that n-grams begin with; V at most.
    from_text: whether the pool has the n-grams of the text too, at first those
      of the prompt; the window's are a few guesses a step.
    by_one: whether the window moves by one token a step, as the authors' does;
      else by as many as the step has committed.

  Raises:
    ValueError: if a size is not a positive integer, or `ngram` less than 2.
  """
  values.check_positives(ngram=ngram, window=window, guesses=guesses,
                         buckets=buckets)
  values.check_number("ngram", ngram, low=2)
  drafter = drafters.lookahead(ngram, window, guesses, buckets, from_text,
                               by_one)
  sizes = f"{ngram}, {window}x{guesses}, buckets={buckets}"
  other = "" if from_text else ", window alone"
  other += "" if by_one else ", by accepted"
  return verifiers.matched(f"lookahead({sizes}{other})", drafter)
