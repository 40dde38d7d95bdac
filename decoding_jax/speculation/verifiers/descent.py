"""The walk down a tree, child by child, by a verifier's rule."""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import random
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import (Array, DraftTree, Layout, NONE, Verdict,
                                Verifier)
from decoding_jax.validation import values


def walk(key, verifier: Verifier, layout: Layout, tree: DraftTree, logits,
         warper: sampling.LogitsWarper) -> Verdict:
  """Accepts a path, in one row, by the rule at each node or `verifier.walk`.
  `tree`, `warper` and the verdict have no batch axis; `logits [M, V]`
  are the target's. If the drafts are samples that fit the verifier, the
  accepted tokens and the one after them have the target's distribution."""
  depth = tree_lib.depth(layout)
  if verifier.walk is not None and depth:
    return verifier.walk(key, layout, tree, logits, warper)
  keys = random.split(key, 1 + depth)
  root, none = jnp.int32(0), jnp.zeros(depth, jnp.int32)
  probs = _distribution(warper, logits, root)
  descent = _Descent(root, root, jnp.bool_(depth > 0), probs, probs,
                     none, none + NONE, none)
  if depth:
    # Most walks end before the last level.
    descent = jax.lax.while_loop(
        lambda at: at.alive & (at.level < depth),
        functools.partial(_descend, keys, verifier, tree_lib.max_branching(
            layout), tree, lambda node: _distribution(warper, logits, node)),
        descent)
  # A walk that has come to the last level ends in a leaf.
  leaf = descent.alive | (depth == 0)
  token = sampling.draw(keys[-1], jnp.log(jnp.where(leaf, descent.probs,
                                                    descent.rest)))
  path = jnp.where(jnp.arange(depth) < descent.level, descent.path,
                   descent.node)
  return Verdict(jnp.concatenate([root[None], path]),
                 jnp.sum(descent.ranks != NONE).astype(jnp.int32), token,
                 descent.ranks, descent.counts)


@flax.struct.dataclass
class _Descent:
  """A walk on its way down."""
  level: Array  # `[]` int32, levels of children that have been tested
  node: Array  # `[]` int32, the last node that was accepted
  alive: Array  # `[]` bool, whether the last test has accepted a child
  probs: Array  # `[V]`, the target's distribution at `node`
  rest: Array  # `[V]`, the residual there
  path: Array  # `[D]` int32, the node after each level that was tested
  ranks: Array  # `[D]` int32, see `Verdict`
  counts: Array  # `[D]` int32, valid children at each level that was tested


def _descend(keys, verifier, size, tree, distribution, at: _Descent):
  """Tests the children of a node, and goes to the one that is accepted."""
  indices, valid = tree_lib.children(tree, size, at.node)
  tokens = tree.tokens[indices]
  draft = None if tree.log_probs is None else jnp.exp(tree.log_probs[
      at.node if tree.sources is None else tree.sources[indices]])
  rank, rest = verifier.rule(random.uniform(keys[at.level], tokens.shape),
                             at.probs, draft, tokens, valid)
  _check(rank, rest, at.probs)
  accepted = rank != NONE
  # Of children with the same token, the first one has the subtree.
  twin = jnp.argmax(valid & (tokens == tokens[rank]))
  node = jnp.where(accepted, indices[twin], at.node).astype(jnp.int32)
  return _Descent(
      at.level + 1, node, accepted, distribution(node), rest,
      at.path.at[at.level].set(node), at.ranks.at[at.level].set(rank),
      at.counts.at[at.level].set(valid.sum().astype(jnp.int32)))


def _check(rank, residual, probs):
  """Raises ValueError, while it is traced, for wrong results of a rule."""
  shape, dtype = values.form(rank)
  if shape or not jnp.issubdtype(dtype, jnp.integer):
    raise ValueError(f"Verifier.rule returned a rank of shape {shape} and type "
                     f"{dtype}: a single integer is needed.")
  if values.form(residual) != values.form(probs):
    shape, dtype = values.form(residual)
    raise ValueError(
        f"Verifier.rule returned a residual of shape {shape} and "
        f"type {dtype}: {probs.dtype} of [V]={probs.shape} is needed.")


def _distribution(warper, logits, node):
  return jnp.exp(sampling.log_probs(warper, logits[node]))


def first(hits):
  """Returns the rank of the first hit `[K]`, or `NONE`."""
  return jnp.where(hits.any(), jnp.argmax(hits), NONE).astype(jnp.int32)
