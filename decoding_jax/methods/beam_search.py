"""Beam search: an approximation of the most probable text."""

from decoding_jax.search import beam, level_search
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_beams=3),)


def make(num_beams: int, length_penalty: float = 0.0) -> Method:
  """Makes beam search, which keeps the W most probable texts of each length.

  A text that has ended stays a beam for as long as it is among them. What is
  searched is the distribution of `Sampling`; at temperature 0 the model's own.

  Args:
    num_beams: W.
    length_penalty: the result is the last beam with the highest log-probability
      over length**length_penalty.

  Returns:
    The method; `stats.extra` has all beams, see `level_search.decoder`.

  Raises:
    ValueError: naming the option, its value and what is allowed.
  """
  values.check_positive("num_beams", num_beams)
  values.check_number("length_penalty", length_penalty)
  rank = level_search.per_length(length_penalty)
  decoder = level_search.decoder(level_search.Level(_expand, rank), num_beams)
  return Method(f"beam_search({num_beams})", sampled=decoder, greedy=decoder)


def _expand(key, log_probs, alive, beams, width):
  del alive
  return beam.plain(key, log_probs, beams, width)
