"""Best of n: the sample of the highest reward."""

from decoding_jax.search import beam, level_search
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_samples=3),)


def make(num_samples: int) -> Method:
  """Makes best of n: draws n texts, and takes the one of highest reward.

  Of equal rewards the more probable text is taken. For temperatures above 0.

  Args:
    num_samples: n.

  Returns:
    The method; `stats.extra` has all samples, see `level_search.decoder`, and
    `reward_calls [B]`.
  """
  values.check_positive("num_samples", num_samples)
  level = level_search.Level(
      level_search.of_beams(beam.independent), level_search.reward,
      needs_reward=True, init=level_search.count_rewards(num_samples))
  return Method(f"best_of_n({num_samples})", greedy=None,
                sampled=level_search.decoder(level, num_samples, 1))
