"""LUD (arXiv 2405.15208): tokens that a tuned target is sure of. Lossy."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.speculation.drafters import confident_pads
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = ({"pads": 2, "confidence": 1.0},)


def make(pads: int = 4, confidence: float = 0.9) -> Method:
  """Makes lexical unit decoding: several tokens a call, and **lossy**.

  The target predicts the tokens after the next one at pads, trained tokens
  (`transformer.with_prompts`; `experiments.prompt_vectors` trains them), and
  those that it is sure of are part of the text at once. Nothing verifies them:
  `ppd` does, with the same pads, and keeps the distribution. The paper also
  controls repetition, of which we know no more than that: it is left out.

  Args:
    pads: k - 1, tokens that are predicted besides the next one.
    confidence: beta, the least probability of a token that is taken; above 1
      none is, and the text is the target's.

  Raises:
    ValueError: if there is no pad, or the confidence is negative.
  """
  values.check_positive("pads", pads)
  values.check_number("confidence", confidence, 0.0)
  return Method(f"lud({pads}, {confidence:g})", sampled=None,
                greedy=verifiers.pair(drafters.lud(pads, float(confidence)),
                                      confident_pads.accept_all()))
