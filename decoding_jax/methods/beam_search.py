"""Beam search: the most probable text, as far as W beams can see."""

from decoding_jax.search import beam, level_search
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_beams=3),)


def make(num_beams: int, length_penalty: float = 0.0) -> Method:
  """Keeps the W most probable texts of each length; one call a token.

  A text that has ended keeps its place for as long as it is among them. The
  distribution that is searched is that of `Sampling`; at temperature 0 the
  model's own.

  Args:
    num_beams: W.
    length_penalty: of the last beams, that with the highest log-probability
      over length**length_penalty is the text.

  Returns:
    The method; `stats.extra` has all beams, see `level_search.decoder`.

  Raises:
    ValueError: if W is not a positive integer, or the penalty no number.
  """
  values.check_positive("num_beams", num_beams)
  values.check_number("length_penalty", length_penalty)
  rank = level_search.per_length(length_penalty)
  decoder = level_search.decoder(level_search.Level(_expand, rank), num_beams)
  return Method(f"beam_search({num_beams})", sampled=decoder, greedy=decoder)


def _expand(key, log_probs, alive, beams, width):
  del alive
  return beam.plain(key, log_probs, beams, width)
