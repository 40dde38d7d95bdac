"""Samples with a majority vote: self-consistency (arXiv 2203.11171)."""

from decoding_jax.search import beam, level_search, votes
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_samples=3),)


def make(num_samples: int, answer_after: int | None = None) -> Method:
  """Makes n samples of the target, of which the most frequent is the text.

  Of equally frequent ones the more probable is taken. For temperatures above 0.

  Args:
    num_samples: n.
    answer_after: a token; texts agree that are the same after its last
      occurrence, and those without it do not vote. None: texts agree that are
      the same.

  Returns:
    The method; `stats.extra` has all samples, see `level_search.decoder`.
  """
  values.check_positive("num_samples", num_samples)
  votes.check_answer_after(answer_after)
  level = level_search.Level(level_search.of_beams(beam.independent),
                             votes.majority(answer_after))
  return Method(f"samples({num_samples})", greedy=None,
                sampled=level_search.decoder(level, num_samples, 1))
