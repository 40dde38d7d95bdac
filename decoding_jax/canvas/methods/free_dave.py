"""FreeDave: several steps of another method, confirmed by one forward."""

from decoding_jax.canvas.methods import static
from decoding_jax.canvas.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(tokens=1, drafts=3), dict(tokens=2, drafts=4))


def make(tokens: int = 1, drafts: int = 4) -> Method:
  """Makes FreeDave (arXiv 2510.00294), lossless against `static(tokens)`.

  From what the model has said of a canvas, the canvases after 1, 2, ... steps
  are drafted; one forward reads them all. A draft is right if it is what a step
  from the one before it gives, and then counts as a step without a forward of
  its own. After the last right one a further step is taken with its logits:

      drafts                x1   x2   x3   x4      of the logits at x0
      a step from each      x2   x3   y4   y5      one forward of four canvases
      x2 and x3 are right; x4 is not y4: three steps, and new drafts from y4

  Args:
    tokens: positions that a step fills.
    drafts: D, canvases a forward.

  Returns:
    The method. Its tokens equal `static(tokens)` up to ties of rounded
    confidences, at temperatures above 0 as well.
  """
  return with_drafts(static.make(tokens), drafts,
                     f"free_dave({tokens}, {drafts})")


def with_drafts(method: Method, drafts: int, name: str | None = None) -> Method:
  """Makes a method lossless against another one, with fewer forwards.

  Args:
    method: any, without drafts.
    drafts: D, canvases a forward; see `make`.
    name: of the method that is made; None for one made of the other's.
  """
  values.check_positive("drafts", drafts)
  return method._replace(
      name=name or f"free_dave({method.name}, {drafts})", drafts=drafts)
