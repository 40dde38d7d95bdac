"""Sequoia (arXiv 2402.12374): a fixed tree, wider where more is accepted."""

from collections.abc import Iterable
from decoding_jax.speculation import expanders, verifiers
from decoding_jax.types import Draws, Method
from decoding_jax.validation import values

EXAMPLES = (dict(children=((2,), (2, 1))),)


def make(children, verification: str = verifiers.USUAL,
         lossy: bool = False) -> Method:
  """Makes Sequoia: siblings by Gumbel-Top-k, recursive rejection sampling.

  `tree_planning.best_trees` finds the best trees for known acceptance rates.

  Args:
    children: of each node of level 0, 1, ..., D - 1, level after level in the
      order of their parents and their draw; 0 for a leaf. `((2,), (2, 1))`:
      the root has two children, the first of which has two, the other one.
    verification: any of `verifiers.RULES`.
    lossy: as in `rsd_c`.

  Returns:
    The method. Where all nodes of a level have equally many children it is
    `rsd_c`, token for token.

  Raises:
    ValueError: if a level has not one number for each of its nodes, or has no
      child; or for another verification.
  """
  levels = children if isinstance(children, Iterable) else [children]
  children = tuple(values.integers(f"children[{i}]", counts)
                   for i, counts in enumerate(levels))
  if not children:
    raise ValueError(f"children={children!r}: at least one level is needed.")
  levels = "/".join(",".join(map(str, counts)) for counts in children)
  suffix, verifier, draws = verifiers.of_name(verification,
                                              expanders.OF_FIXED_TREES)
  return Method(f"sequoia({levels}{suffix})",
                sampled=verifiers.pair(
                    expanders.static_tree(children, draws), verifier, lossy),
                greedy=verifiers.pair(expanders.static_tree(
                    children, Draws.ARBITRARY), verifiers.match()))
