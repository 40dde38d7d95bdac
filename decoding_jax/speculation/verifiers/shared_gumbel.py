"""Shared Gumbel noise: drafter and target draw with the same random numbers.

The token at each position of a text is argmax(log t + g), g being a Gumbel
vector that the row's key and the position alone decide. The drafter ranks
children by log d + g with the same g; so the target's token is likely to be
among them, and the path follows it for as long as it is.

The text has the target's distribution whatever the tree is, and it is the same
text for every drafter and every tree. For one child a node this is Daliri et
al., "Coupling without communication and drafter-invariant speculative decoding"
(arXiv 2408.07978), which accepts the token i with probability
1 / sum_j max(t_j / t_i, d_j / d_i). Several children of a node
have the largest log d + g; Rowan et al. (arXiv 2506.05632) take one draw of
each of several vectors instead. In the words of exponential races (Kobus and
Gunduz, arXiv 2504.15475) the token of the target is the first one to ring of
clocks exp(-g) / t, and the children are the first ones of exp(-g) / d: the same
numbers, of which that paper drafts trees.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.verifiers import paths
from decoding_jax.types import (Array, Draws, DraftTree, Layout, NONE, Verdict,
                                Verifier)


@functools.lru_cache(maxsize=None)
def verifier() -> Verifier:
  """Returns the verifier for drafts with `Draws.SHARED_NOISE`."""
  return Verifier(None, frozenset({Draws.SHARED_NOISE}), walk)


def walk(key, layout: Layout, tree: DraftTree, logits, warper) -> Verdict:
  """Follows the target's tokens for as long as they are children, in one row.
  `key` is not used: the noise comes from `tree.noise_keys`. For log t = (-1,
  -0.7, -2), g = (0.3, -1, 0.2) the token is 0, whatever the children are."""
  del key

  def look(level, node) -> _Visit:
    token = sampling.draw(tree.noise_keys[level],
                          sampling.log_probs(warper, logits[node]))
    children, valid = tree_lib.children(tree, tree_lib.max_branching(layout),
                                        node)
    hits = valid & (tree.tokens[children] == token)
    child = jnp.sum(jnp.where(hits, children - NONE, 0)) + NONE
    return _Visit(level, node, token, child.astype(jnp.int32))

  last = jax.lax.while_loop(
      lambda at: at.child != NONE, lambda at: look(at.level + 1, at.child),
      look(jnp.int32(0), jnp.int32(0)))
  return paths.verdict(layout, tree, last.node, last.token)


class _Visit(NamedTuple):
  """A node on the path."""
  level: Array  # `[]` int32, its depth
  node: Array  # `[]` int32
  token: Array  # `[]` int32, the target's after it
  child: Array  # `[]` int32, the child that has this token, or `NONE`
