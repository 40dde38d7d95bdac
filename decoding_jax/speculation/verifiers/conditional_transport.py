"""Conditional optimal transport of greedy drafts, as proposed by UniVer.

UniVer (arXiv 2605.04543) verifies a tree by transport plans given the
probability that a prefix is reached, from the root down, and decides in
post-order. The formulas below are our derivation from the abstract and may
differ from the paper's. That they keep the target's distribution is tested by
enumeration.

Of the k children of a node the k - 1 most probable tokens S of the draft
distribution d are fixed; just one, x, is drawn, of what they leave: of d off S,
normalised. At a node that is reached with probability a, of its text as a
whole, the target has the mass m = a t, and

    x    begins with  a(x) = min(1, m(x) / d(x)),
    y_j  begins with  a(y_j) = m(y_j) / (1 - a + R + sum of m(y_i), i >= j),
         R = sum of max(m - d, 0) off S,

once x and the more probable ones of S are rejected. The node itself is accepted
with probability R / (1 - a + R) once all its children are, and is followed by a
token of max(m - d, 0) off S. The root's is 1; a leaf is accepted with a,
and followed by a token of t. As in traversal, the children and all that is
below them come before their parent. But no number depends on what was rejected:
a level's numbers are known at once, and the accepted node is the first one in
that order whose uniform is small enough.

With one child a node this is block verification (arXiv 2403.10444); with two
and a = 1 the rule of SpecHub (arXiv 2411.05289). Unlike there, how many
children a node has must not depend on a token that was drawn: a beam will not
do.

`by_node` goes down from the root by that rule with a = 1 and any number of
children. RheoSampling (arXiv 2609.21827; of which just the abstract was at
hand) has such trees: the best tokens are fixed, one is drawn of the tail, and
the shape does not depend on the draw. Given a node and how many children it
has, the token it emits is x with probability min(d, t)(x), y_j with t(y_j), and
any other with max(t - d, 0): in all t. That holds whatever was drawn above or
elsewhere, so that a beam will do if it fixes these numbers before it draws, as
`beam.with_one_sample` does.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import random, vocabulary
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.verifiers import paths
from decoding_jax.types import (Array, Draws, DraftTree, Layout, NONE,
                                Verifier)


@functools.lru_cache(maxsize=None)
def verifier() -> Verifier:
  """Returns conditional optimal transport, for `Draws.ONE_SAMPLED`."""
  return Verifier(None, frozenset({Draws.ONE_SAMPLED}), walk)


@functools.lru_cache(maxsize=None)
def by_node() -> Verifier:
  """Returns optimal transport of each node by itself. For drafts with
  `Draws.ONE_SAMPLED` or `Draws.ONE_IN_BEAM`."""
  def rule(uniforms, target, draft, tokens, valid):
    at = _plan(target, jnp.ones_like(target, shape=()), draft, tokens, valid)
    hits = valid & (uniforms < at.chances)
    rest = jnp.where(at.rest.sum() > 0, at.rest, target)
    return (jnp.where(hits.any(), jnp.argmax(hits), NONE).astype(jnp.int32),
            rest / rest.sum())

  return Verifier(rule, frozenset({Draws.ONE_SAMPLED, Draws.ONE_IN_BEAM}))


def find(uniforms, layout: Layout, tree: DraftTree, probs):
  """Returns the node that is accepted, and weights `[V]` of what follows it. As
  of `paths.walk`, but by a uniform of each node, `[M]`."""
  size = tree_lib.max_branching(layout)
  reached, chances = jnp.ones_like(uniforms), []
  for level in tree_lib.level_slices(layout):
    nodes = jnp.arange(level.start, level.stop)
    children, at = jax.vmap(functools.partial(_weigh, size, tree, probs))(
        nodes, reached[level])
    # What is no child of the node is written nowhere.
    reached = reached.at[children].set(at.chances, mode="drop")
    chances.append(at.itself)
  order = post_order(layout)
  hits = tree.valid & (uniforms < jnp.concatenate(chances).at[0].set(2))
  node = jnp.asarray(order)[jnp.argmax(hits[order])]
  _, at = _weigh(size, tree, probs, node, reached[node])
  return node, jnp.where(at.rest.sum() > 0, at.rest, probs(node))


def _find(key, layout, tree, probs):
  return find(random.uniform(key, tree.tokens.shape), layout, tree, probs)


walk = functools.partial(paths.walk, _find)


def post_order(layout: Layout) -> np.ndarray:
  """Returns `[M]` nodes as they have their turn: children, then their parent.
  The layout has fixed numbers of children, which are in draw order."""
  levels = layout.children or [
      (count,) * width for count, width in zip(layout.branching,
                                               (1, *layout.widths))]
  counts = np.concatenate([*levels, [0] * layout.widths[-1]]).astype(int)
  ends = 1 + np.cumsum(counts)

  def visit(node):
    for child in range(ends[node] - counts[node], ends[node]):
      yield from visit(child)
    yield node

  return np.fromiter(visit(0), np.int32)


class _Weights(NamedTuple):
  """The numbers of a node, by the probability that it is reached."""
  chances: Array  # `[K]`, with which its children are reached
  itself: Array  # `[]`, the probability to accept the node after them
  rest: Array  # `[V]`, weights of the token that follows it then


def _weigh(size, tree: DraftTree, probs, node, reached):
  """Children of a node, `[K]`, M where there is none; and `_Weights`."""
  children, valid = tree_lib.children(tree, size, node)
  # A node of the last level has no draft distribution, and no child either.
  return jnp.where(valid, children, len(tree.tokens)), _plan(
      probs(node), reached, jnp.exp(tree.log_probs[node]),
      tree.tokens[children], valid)


def _plan(target, reached, draft, tokens, valid) -> _Weights:
  """The transport of a node, of which nothing else is known."""
  mass = reached * target
  fixed = jnp.where(valid[1:], tokens[1:], len(mass))
  off = lambda x: vocabulary.put(x, fixed, 0)
  draft = off(draft)
  draft = jnp.where(valid[0], draft / jnp.where(valid[0], draft.sum(), 1), 0)
  rest = jnp.maximum(off(mass) - draft, 0)
  left = 1 - reached + rest.sum()
  likely = jnp.where(valid[1:], vocabulary.take(mass, tokens[1:]), 0)
  # Sums of what is left: 1 less what was tested would cancel.
  lefts = left + jnp.cumsum(likely[::-1])[::-1]
  at_drawn = lambda x: vocabulary.take(x, tokens[0])
  drawn = jnp.where(valid[0], jnp.minimum(1, _ratio(
      at_drawn(mass), at_drawn(draft))), 0)
  return _Weights(jnp.concatenate([drawn[None], _ratio(likely, lefts)]),
                  _ratio(rest.sum(), left), rest)


def _ratio(part, whole):
  """A part of what may be nothing: then nothing is left to be rejected."""
  return jnp.where(whole > 0, part / jnp.where(whole > 0, whole, 1), 1)
