"""Token Recycling (arXiv 2408.08696): a table of the target's successors."""

from decoding_jax.speculation import drafters, verifiers
from decoding_jax.types import Method
from decoding_jax.validation import values

# Nodes of the levels of the paper's tree, 80 in all.
_PAPER = (8, 21, 25, 15, 8, 3)
EXAMPLES = ({"widths": (3, 4), "branching": 3},)


def make(widths=_PAPER, branching: int = 8) -> Method:
  """Makes Token Recycling: drafts from a table of successors, without a model.

  Args:
    widths: nodes of level 1, 2, ..., D.
    branching: successors that are kept of a token, at most V.

  Returns:
    The method. `draft_params`, if given, are a table `[V, branching]` int32 to
    begin with, -1 where nothing is known.
  """
  widths = values.integers("widths", widths)
  values.check_positive("widths", *widths)
  values.check_positive("depth of widths", len(widths))
  values.check_positive("branching", branching)
  drafter = drafters.token_recycling(widths, branching)
  name = f"token_recycling({'-'.join(map(str, widths))}, {branching})"
  return verifiers.matched(name, drafter)
