"""Verification of whole trees, enumerated in float64 over all their draws.

    trees = enumeration.fixed_trees(draft, ((2,), (2, 1)), draws)
    probs, emitted = enumeration.joint_distribution(verifier, trees, target)

No samples: the result is the target's joint distribution to rounding, or the
verifier is wrong. Tables `[V, V]` are distributions by the last token, and the
root is token 0. Bisection of each uniform tells what a rule or a search
accepts, so that both are black boxes.
"""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import beam
from decoding_jax.speculation import expanders, tree as tree_lib
from decoding_jax.speculation.verifiers import (conditional_transport, layers,
                                                path_blocks, traversal)
from decoding_jax.testing import exactness
from decoding_jax.types import Draws, DraftTree, Layout, NONE, Verifier

# Keys that show what of a level depends on them.
_KEYS = 64


class Trees(NamedTuple):
  """All trees that can be drawn."""
  layout: Layout  # Of each
  tree: DraftTree  # A `DraftTree` of n rows, of numpy arrays
  probs: np.ndarray  # `[n]` float64, the probability of each draw


def siblings(draws: Draws, probs, count: int):
  """Yields tokens and valid of `count` siblings, and their probability."""
  size = min(count, np.count_nonzero(probs))
  if draws == Draws.WITH_REPLACEMENT:
    size = count if size else 0
  valid = (True,) * size + (False,) * (count - size)
  if draws == Draws.ONE_SAMPLED:
    tuples = _one_and_most_probable(probs, size)
  elif draws == Draws.ARBITRARY:
    tuples = [(tuple(np.argsort(-probs, kind="stable")[:size].tolist()), 1.0)]
  else:
    tuples = _in_order(probs, size, draws == Draws.WITH_REPLACEMENT)
  for tokens, probability in tuples:
    yield tokens + (0,) * (count - size), valid, probability


def _in_order(probs, size, replacement):
  if not size:
    yield (), 1.0
    return
  for token in np.flatnonzero(probs):
    rest = probs if replacement else np.where(
        np.arange(len(probs)) == token, 0, probs)
    rest = rest / max(rest.sum(), 1e-300)
    for tokens, probability in _in_order(rest, size - 1, replacement):
      yield (int(token), *tokens), probs[token] * probability


def _one_and_most_probable(probs, size):
  if not size:
    yield (), 1.0
    return
  fixed = np.argsort(-probs, kind="stable")[:size - 1]
  rest = probs.copy()
  rest[fixed] = 0
  for token in np.flatnonzero(rest):
    yield (int(token), *fixed.tolist()), rest[token] / rest.sum()


def parents_of(children) -> np.ndarray:
  """Returns parents `[M]` of a tree with these children, level after level."""
  starts = itertools.accumulate(map(len, children), initial=0)
  return np.array([NONE] + [
      start + i for start, level in zip(starts, children)
      for i, count in enumerate(level) for _ in range(count)])


def fixed_trees(draft, children, draws=Draws.WITHOUT_REPLACEMENT) -> Trees:
  """Returns all draws of a tree with these children of each node."""
  drawn = [((0,), (True,), 1.0)]
  for node, count in enumerate(itertools.chain(*children)):
    # A node that is not there has no children.
    drawn = [(tokens + x, valid + there, probability * p)
             for tokens, valid, probability in drawn
             for x, there, p in siblings(
                 draws, draft[tokens[node]] * valid[node], count)]
  tokens, valid, probs = map(np.array, zip(*drawn))
  parents = np.tile(parents_of(children), (len(tokens), 1))
  layout = tree_lib.static_layout(children)
  return Trees(layout, as_tree(draft, layout, tokens, parents, valid), probs)


def merged_paths(draft, expansion) -> Trees:
  """Returns all draws of `iid_tree`: paths that are merged where they agree."""
  layout = expanders.iid_tree(tuple(expansion)).layout
  tokens = np.array(list(itertools.product(range(len(draft)), repeat=sum(
      layout.widths))))
  tokens = np.pad(tokens, ((0, 0), (1, 0)))
  rows = np.arange(len(tokens))[:, None]
  parents, first = np.full_like(tokens, NONE), np.zeros_like(tokens[:, :1])
  for each, level in zip(expansion, tree_lib.level_slices(layout)[1:]):
    parents[:, level] = above = np.repeat(first, each, axis=1)
    texts = above * len(draft) + tokens[:, level]
    # A path goes on from the first one with the same text.
    first = level.start + (texts[:, None] == texts[:, :, None]).argmax(axis=2)
  probs = draft[tokens[rows, parents[:, 1:]], tokens[:, 1:]].prod(axis=1)
  return Trees(layout, as_tree(draft, layout, tokens, parents,
                               np.ones_like(tokens, bool)), probs)


def beams(draft, width: int, depth: int) -> Trees:
  """Returns all draws of a stochastic beam, a sample of texts in order. The
  order in which texts come without replacement settles the tree: a level has
  the first `width` beginnings of its length. Of the deepest level that lacks
  some, the next one is drawn by its probability."""
  masses = [exactness.joint_distribution(draft, 0, n + 1)
            for n in range(depth)]

  def extend(levels, probability):
    for level in reversed(range(depth)):
      rest = masses[level].copy()
      for text in levels[level]:
        rest[text] = 0
      if len(levels[level]) < width and rest.any():
        for text in map(tuple, np.argwhere(rest)):
          yield from extend(
              [x if text[:n + 1] in x or n > level else (*x, text[:n + 1])
               for n, x in enumerate(levels)],
              probability * rest[text] / rest.sum())
        return
    yield levels, probability

  return _of_beams(draft, width, depth, extend([()] * depth, 1.0))


def beams_with_one_sample(draft, width: int, depth: int) -> Trees:
  """Returns all draws of a beam of one sample a node: `Draws.ONE_IN_BEAM`. A
  level is made by `beam.with_one_sample`, whose samples alone may depend on the
  key: any other token may replace them."""
  step = jax.jit(jax.vmap(beam.with_one_sample, (0, None, None, None)),
                 static_argnums=3)
  keys = jax.random.split(jax.random.key(0), _KEYS)

  def extend(levels, state, probability):
    if len(levels) == depth:
      yield levels, probability
      return
    above = levels[-1] if levels else ((),)
    last = [x[-1] if x else 0 for x in above]
    last += [0] * (len(state.scores) - len(last))
    with np.errstate(divide="ignore"):
      grown = step(keys, np.log(draft[last]).astype(np.float32), state, width)
    tokens, parents, state = jax.tree.map(np.asarray, grown)
    first = np.unique(parents[0], return_index=True)[1]
    for x in (parents, state.scores, np.delete(tokens, first, axis=1)):
      assert (x == x[0]).all(), "the shape depends on the sample"
    tokens, parents, state = jax.tree.map(lambda x: x[0].copy(), (
        tokens, parents, state))
    there = np.flatnonzero(state.scores > -np.inf)
    first = [i for i in first if i in there]
    for sampled in itertools.product(range(len(draft)), repeat=len(first)):
      tokens[first] = sampled
      level = tuple((*above[parents[i]], int(tokens[i])) for i in there)
      own = [_of_sample(draft[last[parents[i]]], tokens[
          there[parents[there] == parents[i]]]) for i in first]
      if all(own):
        yield from extend([*levels, level], state, probability * np.prod(own))

  return _of_beams(draft, width, depth, extend([], beam.root(), 1.0))


def _of_sample(probs, tokens):
  """The probability that the first of these is drawn of what the others leave.
  """
  sampled, fixed = tokens[0], tokens[1:]
  return 0 if sampled in fixed else probs[sampled] / (1 - probs[fixed].sum())


def _of_beams(draft, width, depth, drawn):
  """Trees of beams from the texts of their levels."""
  layout = tree_lib.beam_layout(width, depth)
  rows, probs = [], []
  for levels, probability in drawn:
    tokens, parents, valid, before = [0], [NONE], [True], {(): 0}
    for texts in levels:
      at = {text: len(tokens) + i for i, text in enumerate(texts)}
      fill = width - len(texts)
      tokens += [int(x[-1]) for x in texts] + [0] * fill
      parents += [before[x[:-1]] for x in texts] + [0] * fill
      valid += [True] * len(texts) + [False] * fill
      before = at
    rows.append((tokens, parents, valid))
    probs.append(probability)
  np.testing.assert_allclose(sum(probs), 1, rtol=1e-6)
  tokens, parents, valid = map(np.array, zip(*rows))
  return Trees(layout, as_tree(draft, layout, tokens, parents, valid),
               np.array(probs))


def as_tree(draft, layout, tokens, parents, valid) -> DraftTree:
  """Returns a `DraftTree` of n rows from `[n, M]` arrays."""
  rows, size = tokens.shape
  mask = np.zeros((rows, size, size), bool)
  for node in range(size):
    if node:
      mask[:, node] = mask[np.arange(rows), np.maximum(parents[:, node], 0)]
    mask[:, node, node] = True
  with np.errstate(divide="ignore"):
    log_probs = np.log(draft[tokens[:, :size - layout.widths[-1]]])
  return DraftTree(tokens, parents, valid, mask, log_probs)


def acceptance(rule, target, draft, tokens, valid):
  """Returns probabilities `[K]` that a rule accepts each child after rejecting
  those before it, and the residual `[V]` after rejecting all. `target` and
  `draft` are `[V]`, `tokens` and `valid [K]` children in order."""
  ranks = jnp.arange(len(tokens))
  accepts = lambda k, u: rule(jnp.where(ranks == k, u, 1.0), target, draft,
                              tokens, valid)[0] == k
  chances = jax.vmap(lambda k: largest_uniform(
      functools.partial(accepts, k), 1.0))(ranks)
  rest = rule(jnp.ones(len(tokens)), target, draft, tokens, valid)[1]
  return jnp.where(valid, chances, 0), rest


def largest_uniform(accepts, most):
  """Returns the largest uniform that is accepted; 1 if `most` is."""
  def halve(_, bounds):
    middle = sum(bounds) / 2
    inside = accepts(middle)
    return (jnp.where(inside, middle, bounds[0]),
            jnp.where(inside, bounds[1], middle))

  low, _ = jax.lax.fori_loop(0, 60, halve, (0.0, 1.0))
  return jnp.where(accepts(most), 1.0, low)


def run(find, size, uniforms, tree, target):
  """Returns the node that a search accepts, and the distribution after it."""
  node, rest = find(uniforms, size, tree,
                    lambda node: target[tree.tokens[node]])
  return node, rest / rest.sum()


def _by_rule(rule, layout, tree: DraftTree, target):
  """`[M]` probabilities to end at each node, `[M, V]` what follows it there."""
  size, inner = tree_lib.max_branching(layout), len(tree.log_probs)

  def visit(node, carry):
    reach, ends, rests = carry
    indices, valid = tree_lib.children(tree, size, node)
    tokens, own = tree.tokens[indices], target[tree.tokens[node]]
    chances, rest = acceptance(
        rule, own, jnp.exp(tree.log_probs[jnp.minimum(node, inner - 1)]),
        tokens, valid)
    left = reach[node] * jnp.cumprod(jnp.append(1.0, 1 - chances))
    # Of children with the same token, the first one has the subtree.
    twins = indices[jnp.argmax(
        valid[None] & (tokens[:, None] == tokens[None]), axis=1)]
    return (reach.at[twins].add(left[:-1] * chances),
            ends.at[node].set(left[-1]),
            rests.at[node].set(jnp.where(valid.any(), rest, own)))

  zeros = jnp.zeros(len(tree.tokens))
  return jax.lax.fori_loop(0, len(tree.tokens), visit, (
      zeros.at[0].set(1), zeros, jnp.zeros((len(zeros), len(target)))))[1:]


def _by_search(find, layout, tree: DraftTree, target):
  """The same of a search that accepts the first node, children first."""
  nodes = jnp.arange(len(tree.tokens))
  size = tree_lib.max_branching(layout)
  at = lambda node, u: run(find, size, jnp.where(nodes == node, u, 1.0), tree,
                           target)
  # A uniform is less than 1, which nothing accepts.
  chances = jnp.where(tree.valid, jax.vmap(lambda node: largest_uniform(
      lambda u: at(node, u)[0] == node, 1.0 - 1e-15))(nodes), 0).at[0].set(1)
  # Those before a node: its descendants, and all below its elder siblings.
  elder = tree.parents[:, None] == tree.parents[None]
  elder &= nodes[:, None] > nodes[None]
  before = jnp.einsum("ni,ij,mj->nm", tree.mask * 1, elder * 1, tree.mask * 1)
  before = ((before > 0) | tree.mask.T) & (
      nodes[:, None] != nodes[None])
  left = jnp.where(before, 1 - chances[None], 1).prod(axis=1)
  return chances * left, jax.vmap(lambda node: at(node, 0.0)[1])(nodes)


def _by_levels(layout, tree: DraftTree, target):
  """The same of layer verification."""
  probs = lambda node: target[tree.tokens[node]]
  ends, masses = layers.accept_chances(layout, tree, probs)
  rests = jax.vmap(lambda node: layers.rest_of(
      layout, tree, probs, masses, node))(jnp.arange(ends.size))
  return ends, rests / rests.sum(axis=1, keepdims=True)


def _by_choice(choose, layout, tree: DraftTree, target):
  """The same of a path that is chosen, and verified as a block."""
  look = lambda node, accept: path_blocks.visit(
      choose, tree_lib.max_branching(layout), tree,
      lambda node: target[tree.tokens[node]], node, accept)

  def choices(node, carry):
    reach, accept = carry
    here = look(node, accept[node])
    return (reach.at[here.children].add(reach[node] * here.chances),
            accept.at[here.children].max(jnp.where(
                here.chances > 0, here.accepts, 0)))

  nodes = jnp.arange(len(tree.tokens))
  root = jnp.where(nodes == 0, 1.0, 0.0)
  reach, accept = jax.lax.fori_loop(0, len(nodes), choices, (root, root))
  here = jax.vmap(look)(nodes, accept)
  stop = here.stop.at[0].set(1)

  def missed(i, below):
    """The probability that the path ends at no descendant of a node."""
    node = len(nodes) - 1 - i
    after = here.chances[node] @ (below * (1 - stop))[here.children[node]]
    return below.at[node].set(jnp.where(here.chances[node].any(), after, 1))

  below = jax.lax.fori_loop(0, len(nodes), missed, jnp.ones_like(root))
  return reach * stop * below, here.rest / here.rest.sum(axis=1, keepdims=True)


def ends(subject, trees: Trees, target):
  """Returns where the path of a call ends, `[n, M]` probabilities of each tree
  and node, and what follows it, `[n, M, V]`. `subject` is a `Verifier` of a
  rule, of this library's walks but `shared_gumbel`, or a search `(uniforms [M],
  K, tree, probs) -> (node, weights [V])` that tests children before their
  parent. Raises ValueError for other verifiers."""
  with jax.enable_x64(True):
    return tuple(map(np.asarray, _compiled(subject, trees.layout)(
        jax.tree.map(jnp.asarray, trees.tree), jnp.asarray(target))))


@functools.lru_cache(maxsize=64)
def _compiled(subject, layout):
  walks = {
      layers.walk: _by_levels,
      traversal.walk: functools.partial(_by_search, traversal.of_tree),
      conditional_transport.walk: functools.partial(
          _by_search, lambda uniforms, _, *rest: conditional_transport.find(
              uniforms, layout, *rest))}
  if not isinstance(subject, Verifier):
    function = functools.partial(_by_search, subject)
  elif subject.rule:
    function = functools.partial(_by_rule, subject.rule)
  elif subject.walk in walks:
    function = walks[subject.walk]
  elif getattr(subject.walk, "func", None) is path_blocks.walk:
    function = functools.partial(_by_choice, *subject.walk.args)
  else:
    raise ValueError("subject: a verifier that can be enumerated, or a search, "
                     "is needed.")
  return jax.jit(jax.vmap(functools.partial(function, layout), (0, None)))


def texts(subject, trees: Trees, target):
  """Returns the distribution `[n, V, ..., V]` of the first D + 1 tokens of a
  call with each tree, filled up by the target, and the expected number `[n]` of
  tokens of the call. Arguments are as in `ends`."""
  chances, rests = ends(subject, trees, target)
  length = len(trees.layout.widths) + 1
  probs = np.zeros((len(chances),) + (len(target),) * length)
  for row, node in np.argwhere(chances > 0):
    path = np.flatnonzero(trees.tree.mask[row, node])[1:]
    probs[row] += chances[row, node] * continued(
        target, trees.tree.tokens[row, path], rests[row, node], length)
  return probs, (chances * trees.tree.mask.sum(axis=2)).sum(axis=1)


def joint_distribution(subject, trees: Trees, target):
  """Returns what `texts` does, over all trees: `[V, ..., V]` and a number."""
  return tuple(np.tensordot(trees.probs, x, 1)
               for x in texts(subject, trees, target))


def continued(target, tokens, rest, length: int):
  """Returns `[V] * length`: these tokens, one of `rest`, more of the target."""
  for _ in range(length - 1 - len(tokens)):
    rest = rest[..., None] * target
  probs = np.zeros((len(target),) * length)
  probs[tuple(tokens)] = rest
  return probs


def error(subject, trees: Trees, target) -> float:
  """Returns by how much the probability of a text is wrong, at most."""
  probs, _ = joint_distribution(subject, trees, target)
  return float(np.abs(
      probs - exactness.joint_distribution(target, 0, probs.ndim)).max())
