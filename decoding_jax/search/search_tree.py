"""The nodes of a search tree, in arrays of a fixed size.

Node 0 is the empty text; each expansion adds K children at positions that are
the same in all rows: expansion e has nodes 1 + e * K to (e + 1) * K.
"""

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax.search import texts as texts_lib
from decoding_jax.search.texts import Texts
from decoding_jax.types import Array


@flax.struct.dataclass
class Tree:
  """The nodes of each row; a search adds fields `[B, M]` of its own."""
  texts: Texts  # `[B, M, ...]`, from the prompt to each node
  values: Array  # `[B, M]` float32, of the texts
  used: Array  # `[B, M]` bool, whether there is such a node
  expansions: Array  # `[B, M]` int32, how often it was expanded


def size(expansions: int, num_children: int) -> int:
  """Returns M."""
  return 1 + expansions * num_children


def roots(tree_type, root: Texts, size: int, value, **fields):
  """Returns trees of roots alone; a subclass' `fields` fit `[B, M]`."""
  shape = len(root.lengths), size
  wide = lambda x: jnp.broadcast_to(x, shape)
  return tree_type(texts=texts_lib.repeat(root, size), values=wide(value),
                   used=wide(jnp.arange(size)[None] == 0),
                   expansions=jnp.zeros(shape, jnp.int32),
                   **{name: wide(x) for name, x in fields.items()})


def insert(tree, e, index, rows, children: Texts, values, **fields):
  """Adds children of node `index [B]` in `rows [B]`, by expansion e."""
  wide = lambda x: jnp.broadcast_to(x, values.shape)
  fresh = type(tree)(
      texts=children, values=values, used=wide(rows[:, None]),
      expansions=jnp.zeros(values.shape, jnp.int32),
      **{name: wide(x) for name, x in fields.items()})
  put = lambda x, y: jax.lax.dynamic_update_slice_in_dim(
      x, y.astype(x.dtype), 1 + e * values.shape[1], axis=1)
  more = is_node(tree, index, rows).astype(jnp.int32)
  return jax.tree.map(put, tree.replace(expansions=tree.expansions + more),
                      fresh)


def is_node(tree: Tree, index, rows):
  """Returns `[B, M]` bool, true of one node in each of some rows."""
  return rows[:, None] & (jnp.arange(tree.used.shape[1])[None] ==
                          index[:, None])


def at(tree, index):
  """Returns one entry of each row, `[B, 1, ...]`, of any tree of arrays."""
  return jax.tree.map(lambda x: jax.vmap(lambda x, i: x[i][None])(x, index),
                      tree)
