"""AdaDec: a lookahead where the target is uncertain (arXiv 2506.08980)."""

from decoding_jax.search.lookahead import entropy_gate
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_candidates=3, lookahead=2),)


def make(num_candidates: int = 3, lookahead: int = 5,
         threshold: float = 1.0) -> Method:
  """Makes AdaDec: greedy decoding that looks ahead at high entropy.

  For temperature 0. Where the entropy of the target's distribution reaches the
  threshold, the most probable tokens are rolled out greedily, and that one is
  taken whose mean log-probability a token, roll-out included, is the highest;
  of equal ones the more probable.

  A token costs one forward, and where it is looked ahead for up to `lookahead`
  more, of k tokens each.

  Args:
    num_candidates: k, the most probable tokens.
    lookahead: tokens rolled out after each.
    threshold: nats, 0 or more; `entropy_gate.fit_threshold` fits it to a
      model, the paper's are from 0.62 to 1.32.

  Returns:
    The method; `stats.extra` has `lookaheads [B]`, how many tokens were looked
    ahead for.
  """
  values.check_positives(num_candidates=num_candidates, lookahead=lookahead)
  values.check_number("threshold", threshold, 0.0)
  return Method(
      f"adadec({num_candidates}x{lookahead}, threshold={threshold:g})",
      sampled=None, greedy=entropy_gate.decoder(
          int(num_candidates), int(lookahead), float(threshold)))
