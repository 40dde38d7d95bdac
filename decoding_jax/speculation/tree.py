"""Static layouts of trees, and walks on trees that are arrays.

A tree of depth 2 that branches 2 and then 1:

    layout   Layout(widths=(2, 2), branching=(2, 1))
    index    0        1   2    3   4      (level after level, root first)
    parents  NONE     0   0    1   2
    depths   0        1   1    2   2
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import buffers
from decoding_jax.types import Array, DraftTree, FreeLayout, Layout, NONE
from decoding_jax.validation import values


def product_layout(branching: tuple[int, ...]) -> Layout:
  """The layout in which every node of a level has equally many children.

  Args:
    branching: children of each node of level 0, 1, ..., D - 1.

  Returns:
    A layout with `prod(branching[:l])` nodes at level l.
  """
  values.check_positive("branching", *branching)
  widths = itertools.accumulate(branching, lambda a, b: a * b)
  return Layout(tuple(widths), tuple(branching))


def beam_layout(width: int, depth: int) -> Layout:
  """The layout with `width` nodes at each level, under any parents.

  Args:
    width: nodes of a level.
    depth: levels below the root.
  """
  values.check_positives(width=width, depth=depth)
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


def free_layout(nodes: int, depth: int, branching: int) -> FreeLayout:
  """The bounds of a tree whose nodes may have any parents.

  Args:
    nodes: drafted nodes.
    depth: levels below the root of nodes that are tested.
    branching: the most children of a node that are tested.
  """
  values.check_positives(nodes=nodes, depth=depth, branching=branching)
  return FreeLayout(nodes, depth, branching)


def depth(layout: Layout | FreeLayout) -> int:
  """Returns D."""
  if isinstance(layout, FreeLayout):
    return layout.depth
  return len(layout.widths)


def num_nodes(layout: Layout | FreeLayout) -> int:
  """Returns M - 1, the drafted nodes."""
  if isinstance(layout, FreeLayout):
    return layout.nodes
  return sum(layout.widths)


def max_branching(layout: Layout | FreeLayout) -> int:
  """Returns K, the most children of a node; 0 for a tree of a root."""
  if isinstance(layout, FreeLayout):
    return layout.branching
  return max(layout.branching, default=0)


def level_slices(layout: Layout) -> list[slice]:
  """Node indices of level 0, 1, ..., D as slices."""
  bounds = list(itertools.accumulate(layout.widths, initial=1))
  return [slice(0, 1)] + [slice(*b) for b in itertools.pairwise(bounds)]


def depths(layout: Layout) -> np.ndarray:
  """Returns `[M]` int32, the depth of each node."""
  widths = np.array((1, *layout.widths))
  return np.repeat(np.arange(len(widths), dtype=np.int32), widths)


def positions(tree: DraftTree) -> Array:
  """Returns `[B, M]` int32, how many ancestors each node has."""
  return tree.mask.sum(axis=-1, dtype=jnp.int32) - 1


def root(tokens, nodes: int) -> DraftTree:
  """Returns a tree of roots `[B]`, with room for `nodes` that are not valid."""
  batch, size = len(tokens), 1 + nodes
  first = jnp.arange(size)[None] == 0
  return DraftTree(
      tokens=jnp.where(first, tokens[:, None], 0),
      parents=jnp.full((batch, size), NONE, jnp.int32),
      valid=jnp.broadcast_to(first, (batch, size)),
      mask=jnp.broadcast_to(first & first.T, (batch, size, size)))


def from_parents(tokens, parents, valid) -> DraftTree:
  """Returns a tree of any shape, without log-probabilities.

  Args:
    tokens: `[B, M]` int32, the root's first.
    parents: `[B, M]` int32, each lower than the node's own index; the
      root's is not read.
    valid: `[B, M]` bool, which nodes may be tested; descendants of a node that
      may not are taken to be not valid either.
  """
  size = tokens.shape[1]
  itself = jnp.eye(size, dtype=bool)
  parents = parents.at[:, 0].set(NONE)

  def add(node, carry):
    mask, valid = carry
    above = jnp.maximum(parents[:, node], 0)
    rows = jnp.arange(len(tokens))
    return (mask.at[:, node].set(mask[rows, above] | itself[node][None]),
            valid.at[:, node].set(valid[:, node] & valid[rows, above]))

  mask = jnp.broadcast_to(itself.at[1:].set(False), (len(tokens), size, size))
  mask, valid = jax.lax.fori_loop(1, size, add, (mask,
                                                 valid.at[:, 0].set(True)))
  return DraftTree(tokens, parents, valid, mask)


def runs(layout: Layout) -> list[range]:
  """Returns ranges of levels 0, ..., D - 1 of one shape, for a program's loops.

  Levels of a range have equally many nodes and children; the root is alone.
  """
  inner = itertools.pairwise((1, *layout.widths))
  shapes = [(level == 0, *shape) for level, shape in enumerate(zip(
      inner, layout.children or layout.branching))]
  ends = [i for i, (a, b) in enumerate(itertools.pairwise(shapes), 1) if a != b]
  return [range(a, b)
          for a, b in itertools.pairwise([0, *ends, len(shapes)]) if a < b]


def add_level(tree: DraftTree, start, tokens, parents,
              valid) -> DraftTree:
  """Fills in the nodes of one level, `[B, W]`, from index `start []` on.

  All rows at once: one by one, in a `jax.vmap`, they would be scattered.
  """
  size, width = tree.tokens.shape[1], tokens.shape[1]
  itself = jnp.arange(size)[None] == start + jnp.arange(width)[:, None]
  above = buffers.take_along(tree.mask, parents[:, :, None], axis=1)
  tokens, parents, valid, mask = buffers.write_slots(
      (tree.tokens, tree.parents, tree.valid, tree.mask),
      (tokens, parents, valid, above | itself[None]), start)
  return tree.replace(tokens=tokens, parents=parents, valid=valid, mask=mask)


def children(tree: DraftTree, size: int, node):
  """Returns a node's children in draw order, in one row: `[K]`, and validity.

  After the last child stand arbitrary indices that are not valid.
  """
  is_child = tree.parents == node
  # A stable sort keeps the draw order of those that it moves to the front.
  order = jnp.argsort(~is_child, stable=True)[:size]
  return order, (is_child & tree.valid)[order]
