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
from decoding_jax.kernels import buffers
from decoding_jax.types import Layout
from decoding_jax.validation import values


def product_layout(branching: tuple[int, ...]) -> Layout:
  """The layout in which every node of a level has equally many children.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1.

  Returns:
    A layout with `prod(branching[:l])` nodes at level l.

  Raises:
    ValueError: if a number is not a positive integer.
  """
  values.check_positive("branching", *branching)
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
  values.check_positive("width", width)
  values.check_positive("depth", depth)
  return Layout((width,) * depth, (width,) * depth)


def static_layout(children: tuple[tuple[int, ...], ...]) -> Layout:
  """The layout in which each node has a number of children of its own.

  Args:
    children: of each node of level 0, 1, ..., D - 1, in their order; 0 for a
      leaf.

  Returns:
    A layout with `sum(children[l])` nodes at level l + 1.

  Raises:
    ValueError: if a level has not one number for each of its nodes, if one is
      negative, or if a level has no children at all.
  """
  width = 1
  for level, counts in enumerate(children):
    if len(counts) != width or any(
        not isinstance(n, (int, np.integer)) or n < 0 for n in counts) or (
            not sum(counts)):
      raise ValueError(
          f"children[{level}]={counts!r}: {width} integers are needed, one for "
          "each node of that level, none negative and some positive.")
    width = sum(counts)
  return Layout(tuple(map(sum, children)), tuple(map(max, children)),
                tuple(map(tuple, children)))


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


def runs(layout: Layout) -> list[range]:
  """Stretches of inner levels of one shape, over which a program can loop.

  Args:
    layout: of the tree.

  Returns:
    ranges of levels 0, 1, ..., D - 1, in order. The levels of a range have
    equally many nodes, and below each come equally many; the root is alone.
  """
  inner = itertools.pairwise((1, *layout.widths))
  shapes = [(level == 0, *shape) for level, shape in enumerate(zip(
      inner, layout.children or layout.branching))]
  ends = [i for i, (a, b) in enumerate(itertools.pairwise(shapes), 1) if a != b]
  return [range(a, b)
          for a, b in itertools.pairwise([0, *ends, len(shapes)]) if a < b]


def add_level(tree: types.DraftTree, start, tokens, parents,
              valid) -> types.DraftTree:
  """Fills in the nodes of one level.

  All rows at once: one by one, in a `jax.vmap`, they would be scattered.

  Args:
    tree: a tree that is filled up to that level.
    start: `[]` int32, index of the level's first node.
    tokens: `[B, W]` int32.
    parents: `[B, W]` int32.
    valid: `[B, W]` bool.

  Returns:
    The tree.
  """
  size, width = tree.tokens.shape[1], tokens.shape[1]
  itself = jnp.arange(size)[None] == start + jnp.arange(width)[:, None]
  above = buffers.take_along(tree.mask, parents[:, :, None], axis=1)
  tokens, parents, valid, mask = buffers.write_slots(
      (tree.tokens, tree.parents, tree.valid, tree.mask),
      (tokens, parents, valid, above | itself[None]), start)
  return tree.replace(tokens=tokens, parents=parents, valid=valid, mask=mask)


def children(tree: types.DraftTree, size: int, node):
  """The children of a node in draw order, of one row.

  Args:
    tree: a tree without its batch axis.
    size: K, the most children of a node, static.
    node: `[]` int32.

  Returns:
    indices `[K]` int32 and valid `[K]` bool. After the last child stand
    arbitrary indices that are not valid.
  """
  is_child = tree.parents == node
  # A stable sort keeps the draw order of those that it moves to the front.
  order = jnp.argsort(~is_child, stable=True)[:size]
  return order, (is_child & tree.valid)[order]
