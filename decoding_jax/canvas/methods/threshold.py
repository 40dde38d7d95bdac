"""Confidence threshold decoding: all positions that the model is sure of."""

from decoding_jax.canvas import rules
from decoding_jax.canvas.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(least=0.5),)


def make(least: float = 0.9) -> Method:
  """Makes Fast-dLLM's parallel decoding (arXiv 2505.22618, section 3.3).

  Args:
    least: confidence from which on a position is filled; the most confident one
      is in any case.

  Raises:
    ValueError: if `least` is not in [0, 1].
  """
  values.check_number("least", least, 0, 1)

  def rule(params, confidence, eligible, start):
    del params, start
    return rules.at_least_one(confidence >= least, confidence, eligible)

  return Method(f"threshold({least:g})", rule)
