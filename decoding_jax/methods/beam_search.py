"""Beam search: an approximation of the most probable text."""

from decoding_jax.search import beam, level_search
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_beams=3), dict(num_beams=2, rank="reward"))

_RANKS = {"log_prob": False, "reward": True}


def make(num_beams: int, length_penalty: float = 0.0,
         rank: str = "log_prob") -> Method:
  """Makes beam search, which keeps the W most probable texts of each length.

  A text that has ended stays a beam for as long as it is among them; with a
  length penalty above 0 the W best ended ones are kept next to W beams, as in
  transformers. What is searched is the distribution of `Sampling`; at
  temperature 0 the model's own.

  Args:
    num_beams: W.
    length_penalty: the result is the text with the highest log-probability
      over length**length_penalty.
    rank: "log_prob"; or "reward", the result is the last beam of the highest
      reward, of equal ones the more probable.

  Returns:
    The method; `stats.extra` has all beams, see `level_search.decoder`.
  """
  values.check_positive("num_beams", num_beams)
  values.check_number("length_penalty", length_penalty)
  if not values.check_one_of("rank", rank, _RANKS):
    level = level_search.Level(
        level_search.of_beams(beam.plain, length_penalty),
        level_search.per_length(length_penalty))
    name = f"beam_search({num_beams})"
  elif length_penalty:
    raise ValueError(f"length_penalty={length_penalty!r}: 0 is needed with "
                     "rank='reward'.")
  else:
    level = level_search.Level(
        level_search.of_beams(beam.plain), level_search.reward,
        needs_reward=True, init=level_search.count_rewards(num_beams))
    name = f"beam_search({num_beams}, reward)"
  decoder = level_search.decoder(level, num_beams)
  return Method(name, sampled=decoder, greedy=decoder)
