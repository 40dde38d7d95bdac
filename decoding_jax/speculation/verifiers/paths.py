"""Paths that end at a node which a verifier finds by a way of its own."""

import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import random
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import DraftTree, Layout, NONE, Verdict


def walk(find, key, layout: Layout, tree: DraftTree, logits,
         warper) -> Verdict:
  """Accepts the path to a node that `find` returns, in one row. `find` is
  `(key, layout, tree, probs) -> (node [] int32, weights [V])`: the path's end,
  and the weights of the token after it; `probs` maps a node `[]` to the
  target's distribution `[V]`. `logits` are `[M, V]`, and `tree` has no batch
  axis."""
  node_key, token_key = random.split(key)
  node, weights = find(node_key, layout, tree, lambda node: jnp.exp(
      sampling.log_probs(warper, logits[node])))
  token = sampling.draw(token_key, jnp.log(weights))
  return verdict(layout, tree, node, token)


def share(part, whole):
  """Returns a part of what may be nothing, which is nothing."""
  return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1), 0)


def left_over(mass, accept):
  """The probability to accept a node whose children were rejected."""
  some = mass > sampling.MIN_MASS
  # In this order it is 1 to the last digit where `accept` is.
  return jnp.where(some, mass / jnp.where(some, mass + (1 - accept), 1),
                   jnp.floor(accept))


def verdict(layout: Layout, tree: DraftTree, node, token) -> Verdict:
  """Returns the verdict of the path to `node []`, which `token []` follows."""
  levels = jnp.arange(tree_lib.depth(layout) + 1)
  at_level = tree_lib.positions(tree)[None] == levels[:, None]
  on_path = tree.mask[node][None] & at_level
  path = jnp.where(on_path.any(1), jnp.argmax(on_path, axis=1), node)
  accepted = on_path.sum() - 1
  parents, child = tree.parents[None], path[1:, None]
  order = jnp.arange(parents.size)[None]
  before = (parents == tree.parents[child]) & (order < child)
  children = (parents == path[:-1, None]) & tree.valid[None]
  levels, integers = levels[:-1], lambda x: x.astype(jnp.int32)
  return Verdict(
      integers(path), integers(accepted), token,
      integers(jnp.where(levels < accepted, before.sum(1), NONE)),
      integers(jnp.where(levels <= accepted, children.sum(1), 0)))
