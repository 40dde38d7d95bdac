"""Static layouts of trees, and walks on trees that are arrays.

A tree of depth 2 that branches 2 and then 1:

    layout   Layout(widths=(2, 2), branching=(2, 1))
    index    0        1   2    3   4      (level after level, root first)
    parents  NONE     0   0    1   2
    depths   0        1   1    2   2
"""

import itertools

import jax.numpy as jnp
import numpy as np

from decoding_jax import types
from decoding_jax.types import Layout


def product_layout(branching: tuple[int, ...]) -> Layout:
  """The layout in which every node of a level has equally many children.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1.

  Returns:
    A layout with `prod(branching[:l])` nodes at level l.

  Raises:
    ValueError: if a number is not a positive integer.
  """
  check_positive("branching", *branching)
  widths = itertools.accumulate(branching, lambda a, b: a * b)
  return Layout(tuple(widths), tuple(branching))


def beam_layout(width: int, depth: int) -> Layout:
  """The layout with `width` nodes at each level, under any parents.

  Args:
    width: nodes of a level.
    depth: levels below the root.

  Returns:
    The layout.

  Raises:
    ValueError: if a size is not a positive integer.
  """
  check_positive("width", width)
  check_positive("depth", depth)
  return Layout((width,) * depth, (width,) * depth)


def check_positive(name, *values):
  """Raises ValueError naming the argument unless all are positive integers."""
  for value in values:
    if not isinstance(value, (int, np.integer)) or value < 1:
      raise ValueError(f"{name}={value!r}: a positive integer is needed.")


def depth(layout: Layout) -> int:
  """D."""
  return len(layout.widths)


def num_nodes(layout: Layout) -> int:
  """M - 1, the drafted nodes."""
  return sum(layout.widths)


def max_branching(layout: Layout) -> int:
  """K, the most children that a node can have; 0 for a tree of a root."""
  return max(layout.branching, default=0)


def level_slices(layout: Layout) -> list[slice]:
  """Node indices of level 0, 1, ..., D as slices."""
  bounds = list(itertools.accumulate(layout.widths, initial=1))
  return [slice(0, 1)] + [slice(*b) for b in itertools.pairwise(bounds)]


def depths(layout: Layout) -> np.ndarray:
  """`[M]` int32, the depth of each node."""
  widths = np.array((1, *layout.widths))
  return np.repeat(np.arange(len(widths), dtype=np.int32), widths)


def extend_mask(mask, parents, size):
  """Ancestor rows of a new level.

  Args:
    mask: `[m, M]` bool, the rows of the nodes so far; see `DraftTree.mask`.
    parents: `[W]` int32, parents of the new nodes, which come at m, m + 1, ...
    size: M.

  Returns:
    `[m + W, M]` bool.
  """
  itself = jnp.arange(size) == mask.shape[0] + jnp.arange(len(parents))[:, None]
  return jnp.concatenate([mask, mask[parents] | itself])


def children(tree: types.DraftTree, layout: Layout, level: int, node):
  """The children of a node in draw order, of one row.

  Args:
    tree: a tree without its batch axis.
    layout: its layout.
    level: the level of the node, static.
    node: `[]` int32, a node of that level.

  Returns:
    indices `[K]` int32 and valid `[K]` bool, K = layout.branching[level].
    Behind the last child stand arbitrary indices that are not valid.
  """
  below = level_slices(layout)[level + 1]
  is_child = tree.parents[below] == node
  # A stable sort keeps the draw order of those that it moves to the front.
  order = jnp.argsort(~is_child, stable=True)[:layout.branching[level]]
  indices = below.start + order
  return indices, is_child[order] & tree.valid[indices]
