"""Parallel prompt decoding (arXiv 2405.18628): trained prompt tokens."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = ({"widths": (3, 2), "branching": 3},)


def make(widths=(6, 6, 4), branching: int = 16, short: int = 1) -> Method:
  """Makes parallel prompt decoding: the target guesses ahead, without a model.

  The text has the target's distribution whatever the prompt tokens are; only
  those that are trained for the target guess well. The target has to know
  them: `transformer.with_prompts`.

  Args:
    widths: drafted nodes of level 1, 2, ..., D; D prompt tokens are needed.
    branching: the most probable guesses kept for a position, at most V.
    short: prompt tokens after nodes off the best path, at most D.

  Raises:
    ValueError: if a size is not a positive integer, or `short` more than D.
  """
  widths = values.integers("widths", widths)
  values.check_positive("widths", *widths)
  values.check_positive("depth of widths", len(widths))
  values.check_positives(branching=branching, short=short)
  if short > len(widths):
    raise ValueError(f"short={short}: at most the {len(widths)} prompt tokens "
                     "of widths are allowed.")
  drafter = drafters.ppd(widths, branching, short)
  name = f"ppd({'-'.join(map(str, widths))}, {branching}, short={short})"
  return verifiers.matched(name, drafter)
