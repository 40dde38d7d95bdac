"""Static decoding: the k most confident positions a step."""

from decoding_jax.canvas import rules
from decoding_jax.canvas.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(tokens=1), dict(tokens=3))


def make(tokens: int) -> Method:
  """Makes static decoding (LLaDA, arXiv 2502.09992, "low-confidence").

  Args:
    tokens: k, positions that are filled a step, fewer at the end of a block.

  Returns:
    The method: ceil(S / k) forwards a block.
  """
  values.check_positive("tokens", tokens)

  def rule(params, confidence, eligible, start):
    del params, start
    return rules.most_confident(confidence, eligible, tokens)

  return Method(f"static({tokens})", rule)
