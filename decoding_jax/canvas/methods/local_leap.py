"""LocalLeap: near a position that is sure, less confidence is enough."""

import jax.numpy as jnp

from decoding_jax.canvas import rules
from decoding_jax.canvas.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(anchor=0.6, least=0.3, radius=1),)


def make(anchor: float = 0.9, least: float = 0.75, radius: int = 4) -> Method:
  """Makes LocalLeap (arXiv 2510.07081).

  Anchors are the masked positions of the block whose confidence is at least
  `anchor`. They are filled, and so are positions within `radius` of one whose
  confidence is at least `least`; else the most confident position.

  Args:
    anchor: least confidence of an anchor.
    least: least confidence near one, at most `anchor`.
    radius: distance that is near.
  """
  values.check_number("anchor", anchor, 0, 1)
  values.check_number("least", least, 0, 1)
  values.check_positive("radius", radius)
  if least > anchor:
    raise ValueError(f"least={least} must be at most anchor={anchor}.")

  def rule(params, confidence, eligible, start):
    del params, start
    anchors = eligible & (confidence >= anchor)
    places = jnp.arange(len(confidence))
    close = jnp.abs(places[:, None] - places[None]) <= radius
    near = (close & anchors[None]).any(axis=1)
    return rules.at_least_one(anchors | near & (confidence >= least),
                              confidence, eligible)

  return Method(f"local_leap({anchor:g}, {least:g}, {radius})", rule)
