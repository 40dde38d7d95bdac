"""Drafts of a method: several of its steps, confirmed by one forward."""

from decoding_jax.canvas.types import Method
from decoding_jax.validation import values


def with_drafts(method: Method, drafts: int, name: str | None = None) -> Method:
  """Makes a method lossless against another one, with fewer forwards.

  Args:
    method: any, without drafts.
    drafts: D, canvases a forward; see `methods.free_dave`.
    name: of the method that is made; None for one made of the other's.

  Returns:
    The method.

  Raises:
    ValueError: if D is not a positive integer.
  """
  values.check_positive("drafts", drafts)
  return method._replace(
      name=name or f"free_dave({method.name}, {drafts})", drafts=drafts)
