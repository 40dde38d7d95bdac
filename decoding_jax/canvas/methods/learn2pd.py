"""Learn2PD: a small network decides which tokens are final."""

import jax
import jax.numpy as jnp

from decoding_jax.canvas import filters, rules
from decoding_jax.canvas.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(least=0.5), dict(least=0.5, ends_text=False))


def make(least: float = 0.9, tokens: int = 1, ends_text: bool = True) -> Method:
  """Makes Learn2PD (arXiv 2509.25188), with its end-of-text prediction.

  A filter reads the confidences of a block and says of each position how
  probable it is that its token is what static decoding would end with. Those at
  least `least` are filled, and in any case the most confident ones. Once an end
  of text is filled in, so is all after it.

  Args:
    least: probability from which on a position is filled.
    tokens: positions that are filled in any case.
    ends_text: whether there is end-of-text prediction.

  Returns:
    The method, which takes the parameters of `filters.init`, for blocks of
    their size.
  """
  values.check_number("least", least, 0, 1)
  values.check_positive("tokens", tokens)

  def rule(params, confidence, eligible, start):
    size = params["out"].shape[0]
    # Of a text that is whole there is no block: nothing is eligible.
    start = jnp.minimum(start, len(confidence) - size)
    take = lambda x: jax.lax.dynamic_slice_in_dim(x, start, size)
    final = jax.nn.sigmoid(filters.logits(
        params, filters.inputs(take(confidence), take(eligible)))) >= least
    chosen = jax.lax.dynamic_update_slice_in_dim(
        jnp.zeros_like(eligible), final, start, 0)
    return chosen | rules.most_confident(confidence, eligible, tokens)

  end = "" if ends_text else ", ends_text=False"
  return Method(f"learn2pd({least:g}, {tokens}{end})", rule,
                ends_text=ends_text, needs_params=True)
