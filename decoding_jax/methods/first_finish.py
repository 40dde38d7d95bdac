"""First finish search (arXiv 2505.18149): the shortest of n samples."""

from decoding_jax.search import beam, level_search, texts, votes
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_samples=3),)


def make(num_samples: int, num_finished: int = 1,
         answer_after: int | None = None) -> Method:
  """Makes first finish search: n samples in lockstep, the first to end wins.

  A row ends with its k-th sample that ends; the others are cut off there. With
  k > 1 the k shortest vote, as in `samples`. For temperatures above 0.

  Args:
    num_samples: n.
    num_finished: k, at most n.
    answer_after: see `samples`.

  Returns:
    The method; `stats.extra` has all samples, see `level_search.decoder`.
  """
  values.check_positives(num_samples=num_samples, num_finished=num_finished)
  if num_finished > num_samples:
    raise ValueError(f"num_finished={num_finished}: at most num_samples="
                     f"{num_samples} is allowed.")
  votes.check_answer_after(answer_after)

  def ends(context, nodes):
    return texts.ended(context, nodes).sum(axis=1) >= num_finished

  level = level_search.Level(
      level_search.of_beams(beam.independent),
      votes.majority_of_first(num_finished, answer_after), ends=ends)
  return Method(f"first_finish({num_samples}, {num_finished})", greedy=None,
                sampled=level_search.decoder(level, num_samples, 1))
