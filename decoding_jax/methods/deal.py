"""DeAL: beam search by probability and the reward of a lookahead."""

from decoding_jax.search import lookahead_beam
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_beams=2, num_candidates=2, lookahead=2),)


def make(num_beams: int, num_candidates: int, lookahead: int,
         reward_weight: float = 1.0) -> Method:
  """Makes DeAL at the level of tokens (arXiv 2402.06147, section 3).

  For temperature 0. The most probable next tokens of each beam are rolled out
  greedily, and the beams of the highest log t(text) + reward_weight * R(text
  with roll-out) are kept. With one beam it is `cdlh`; with a weight of 0, and
  no fewer candidates than beams, it is `beam_search`.

  A token costs one forward of the beams, and `lookahead` forwards of
  num_beams * num_candidates tokens.

  Args:
    num_beams: W.
    num_candidates: k, the most probable next tokens of each beam.
    lookahead: tokens rolled out after each.
    reward_weight: lambda.

  Returns:
    The method; for its statistics see `lookahead_beam.decoder`.
  """
  values.check_positives(num_beams=num_beams, num_candidates=num_candidates,
                         lookahead=lookahead)
  values.check_number("reward_weight", reward_weight)
  sizes = lookahead_beam.Sizes(int(num_beams), int(num_candidates),
                               int(lookahead), float(reward_weight))
  return Method(f"deal({num_beams}, {num_candidates}x{lookahead}, "
                f"lambda={reward_weight:g})",
                sampled=None, greedy=lookahead_beam.decoder(sizes))
