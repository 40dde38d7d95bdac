"""Stochastic beam search (Kool et al. 2019): texts without replacement."""

from decoding_jax.search import beam, level_search
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_beams=3),)


def make(num_beams: int) -> Method:
  """Makes stochastic beam search: W texts of the target without replacement.

  The first one is a sample of the target's distribution, so that `tokens` are
  exact; the beams are in the order in which they were drawn. Texts that are cut
  off by `max_new_tokens` count as texts. For temperatures above 0.

  Args:
    num_beams: W.

  Returns:
    The method; `stats.extra` has all beams with their log-probabilities and
    perturbed log-probabilities (`beam_scores`), see `level_search.decoder`.
  """
  values.check_positive("num_beams", num_beams)
  level = level_search.Level(level_search.of_beams(beam.perturbed),
                             level_search.score)
  return Method(f"stochastic_beam_search({num_beams})",
                sampled=level_search.decoder(level, num_beams), greedy=None)
