"""Layer verification: the levels of a tree one by one, the deepest one first.

From the root down every node v gets a weight w(v), the root's being 1.
The weights of a level sum up to W, the probability that the path reaches that
level. At each of its nodes recursive rejection goes through the children with
the target mass W t instead of the distribution t:

    accept the child x with probability  alpha = min(1, r(x) / d(x)),
    else  r' = max(r - d, 0) / (1 - sum of min(r, d)),  and x leaves d,

where r is W t at first. A child has the weight w(v) / W times the probability
that it is accepted there, the siblings before it being rejected; and R(v, y) is
w(v) / W times the probability that all are rejected, times what is r(y) then.
From the deepest level up, a level ends the path, if no deeper one has, with the
probability that the sum of its R has in what the next level leaves; the node
and the token after it are in proportion to R.

Levels are verified as Sun et al. verify the tokens of a block (arXiv
2403.10444), with sums over a level instead of one number; on a chain it is
just that. All nodes of a level are treated at once, with no loop from leaf to
root as in traversal, which accepts a few percent more.

Given a level, its nodes' expected weights and R are w(v) t: what was drawn
elsewhere does not matter. As with recursive rejection, whether a node has
another child may depend on anything but the token of that child; and, since W
enters all tests below a level, on nothing that is drawn below it.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax.kernels import vocabulary
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.verifiers import paths
from decoding_jax.types import Array, Draws, DraftTree, Layout, Verifier


@functools.lru_cache(maxsize=None)
def verifier() -> Verifier:
  """Returns layer verification, for siblings drawn without replacement."""
  return Verifier(None, frozenset({Draws.WITHOUT_REPLACEMENT}), walk)


def find(key, layout: Layout, tree: DraftTree, probs):
  """Draws the node at which the path ends: `find` of `paths.walk`."""
  chances, masses = accept_chances(layout, tree, probs)
  node = kernels.gumbel_top_k(key, jnp.log(chances), 1)[1].squeeze(0)
  return node, rest_of(layout, tree, probs, masses, node)


walk = functools.partial(paths.walk, find)


def accept_chances(layout: Layout, tree: DraftTree, probs):
  """Returns `[M]`, the probability that a path ends at each node, and `[D +
  1]`, W of each level. `probs`: see `paths.walk`."""
  size = tree_lib.max_branching(layout)
  weights = jnp.zeros_like(probs(0), shape=tree.tokens.shape).at[0].set(1)
  masses, ends = [], []
  for level in tree_lib.level_slices(layout):
    mass = weights[level].sum()
    shares = paths.share(weights[level], mass)
    losses = jax.vmap(functools.partial(_reject, size, tree, probs), (0, None))(
        jnp.arange(level.start, level.stop), mass)
    weights = weights.at[losses.children].set(
        shares[:, None] * losses.chances, mode="drop")
    lost = shares * losses.lost
    ends.append(paths.share(lost * losses.rest.sum(axis=1), lost.sum()))
    masses.append(mass)
  deeper, chances = jnp.ones_like(mass), []
  for end in ends[:0:-1]:
    chances.append(deeper * end)
    deeper *= jnp.maximum(1 - end.sum(), 0)
  return jnp.concatenate([deeper[None], *chances[::-1]]), jnp.stack(masses)


def rest_of(layout: Layout, tree: DraftTree, probs, masses, node):
  """Returns weights `[V]` of the token after a node at which the path ends."""
  mass = masses[jnp.asarray(tree_lib.depths(layout))[node]]
  rest = _reject(tree_lib.max_branching(layout), tree, probs, node, mass).rest
  return jnp.where(rest.sum() > 0, rest, probs(node))


class _Rejected(NamedTuple):
  """The result of recursive rejection at a node."""
  children: Array  # `[K]` int32, M where there is no child
  chances: Array  # `[K]`, to accept each of them
  lost: Array  # `[]`, the probability to reject them all
  rest: Array  # `[V]`, what is left of the mass then, 1 at most


def _reject(size, tree: DraftTree, probs, node, mass) -> _Rejected:
  """Goes through the children of a node, all of which are rejected."""
  children, valid = tree_lib.children(tree, size, node)

  def test(state, child):
    rest, draft, lost = state
    token, there = child
    drawn, kept = (vocabulary.take(x, token) for x in (draft, rest))
    rejected = jnp.where(there, jnp.maximum(drawn - kept, 0) /
                         jnp.where(there, drawn, 1), 1)
    # Not 1 less the sum of the lesser ones, which would cancel.
    less = jnp.maximum(rest - draft, 0)
    less = paths.share(less, jnp.maximum(draft - rest, 0).sum())
    without = vocabulary.put(draft, token, 0)
    keep = functools.partial(jnp.where, there)
    # By rounding alone it could be more than 1.
    return (keep(less / jnp.maximum(less.sum(), 1), rest),
            keep(paths.share(without, without.sum()), draft),
            lost * rejected), lost * (1 - rejected)

  target = probs(node)
  # A node of the last level has no draft distribution, and no child either.
  (rest, _, lost), chances = jax.lax.scan(
      test, (mass * target, jnp.exp(tree.log_probs[node]).astype(target.dtype),
             jnp.ones_like(mass)), (tree.tokens[children], valid))
  return _Rejected(jnp.where(valid, children, len(tree.tokens)), chances, lost,
                   rest)
