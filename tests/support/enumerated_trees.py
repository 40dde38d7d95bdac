"""Verification of whole trees, enumerated in float64 over all their draws.

Of each tree that can be drawn, and each node of it, the probability to accept
the node is found by bisection: the search for the node is a black box.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import DraftTree, NONE
from models.testing import exactness
from support import helpers

TOLERANCE = 1e-10


def without_replacement(probs, count):
  """Draws of siblings: tokens and valid of `count`, and the probability."""
  for tokens, chance in helpers.ordered_draws(probs, count, replacement=False):
    missing = count - len(tokens)
    yield (tokens + (0,) * missing,
           (True,) * len(tokens) + (False,) * missing, chance)


def greedy_and_sample(probs, count):
  """The same of a sample and the most probable tokens, which leave some."""
  count_of_mass = min(count, np.count_nonzero(probs))
  missing = count - count_of_mass
  valid = (True,) * count_of_mass + (False,) * missing
  if not count_of_mass:
    yield (0,) * missing, valid, 1.0
    return
  fixed = np.argsort(-probs, kind="stable")[:count_of_mass - 1]
  rest = probs.copy()
  rest[fixed] = 0
  for token in np.flatnonzero(rest):
    yield ((int(token), *fixed.tolist()) + (0,) * missing, valid,
           rest[token] / rest.sum())


def shape(children):
  """Parents `[M]` of a static tree, and its layout."""
  layout = tree_lib.static_layout(children)
  counts = [1, *layout.widths]
  starts = np.cumsum([0, *counts])
  parents = [NONE]
  for level, of_level in enumerate(children):
    parents += [starts[level] + i for i, n in enumerate(of_level)
                for _ in range(n)]
  return layout, np.array(parents)


def all_trees(draft, children, draws):
  """Tokens `[n, M]`, valid `[n, M]` and chances `[n]` of all draws of a tree.

  The root is token 0; the distribution of a child is the row of its parent's
  token.
  """
  counts = list(itertools.chain(*children))
  drawn = [((0,), (True,), 1.0)]
  for node, count in enumerate(counts):
    grown = []
    for tokens, valid, chance in drawn:
      # Of a node that is not there nothing is drawn.
      probs = draft[tokens[node]] * valid[node]
      grown += [(tokens + x, valid + there, chance * p)
                for x, there, p in draws(probs, count)]
    drawn = grown
  return tuple(map(np.array, zip(*drawn)))


def post_order(parents):
  """Nodes as they are tested: children in order, then their parent."""
  def visit(node):
    below = [visit(child) for child in np.flatnonzero(parents == node)]
    return [*itertools.chain(*below), node]

  return visit(0)


def static_trees(draft, layout, parents, tokens, valid):
  """A batch of trees, `[n, ...]`."""
  inner = len(parents) - layout.widths[-1]
  mask = np.zeros((len(parents),) * 2, bool)
  for node, parent in enumerate(parents):
    mask[node] = mask[parent] if node else False
    mask[node, node] = True
  with np.errstate(divide="ignore"):
    log_probs = np.log(draft[tokens[:, :inner]])
  repeat = lambda x: np.tile(x, (len(tokens),) + (1,) * x.ndim)
  return DraftTree(tokens, repeat(parents), valid, repeat(mask), log_probs)


def run(find, size, uniforms, tree, target):
  """`find` on one tree: the accepted node, the next token's distribution."""
  node, rest = find(uniforms, size, tree,
                    lambda node: target[tree.tokens[node]])
  return node, rest / rest.sum()


def chance(find, size, tree, target, node):
  """The probability to accept a node when all before it are rejected."""
  def accepts(u):
    uniforms = jnp.where(jnp.arange(len(tree.tokens)) == node, u, 1.0)
    return run(find, size, uniforms, tree, target)[0] == node

  # A uniform is less than 1, which nothing accepts.
  return helpers.largest_uniform(accepts, 1.0 - 1e-15)


@functools.partial(jax.jit, static_argnums=(0, 1))
def of_trees(find, size, trees, target):
  """Probabilities `[n, M]` of nodes, distributions `[n, M, V]` after them."""
  nodes = jnp.arange(trees.tokens.shape[1])
  chances = lambda tree, node: chance(find, size, tree, target, node)
  rests = lambda tree, node: run(
      find, size, jnp.where(nodes == node, 0.0, 1.0), tree, target)[1]
  each = lambda f: jax.vmap(jax.vmap(f, (None, 0)), (0, None))(trees, nodes)
  return each(chances), each(rests)


def joint_distribution(find, target, draft, children,
                       draws=without_replacement):
  """The distribution of the first tokens of a call, and its expected tokens."""
  layout, parents = shape(children)
  tokens, valid, reach = all_trees(draft, children, draws)
  with jax.enable_x64(True):
    trees = static_trees(draft, layout, parents, tokens, valid)
    chances, rests = map(np.asarray, of_trees(
        find, tree_lib.max_branching(layout), trees, jnp.asarray(target)))
  probs, emitted = 0, 0.0
  for node in post_order(parents):
    accepted = reach * chances[:, node] * valid[:, node] if node else reach
    reach = reach - accepted
    path = np.flatnonzero(trees.mask[0, node])
    emitted += accepted.sum() * len(path)
    for x, p, rest in zip(tokens[:, path[1:]], accepted, rests[:, node]):
      probs = probs + p * continued(target, x, rest, len(children) + 1)
  return probs, emitted


def continued(target, tokens, rest, length):
  """`[V] * length`: these tokens, one by `rest`, and others by the target."""
  for _ in range(length - 1 - len(tokens)):
    rest = rest[..., None] * target
  probs = np.zeros((len(target),) * length)
  probs[tuple(tokens)] = rest
  return probs


def wrong(probs, target):
  expected = exactness.joint_distribution(target, 0, probs.ndim)
  return np.abs(probs - expected).max() > TOLERANCE
