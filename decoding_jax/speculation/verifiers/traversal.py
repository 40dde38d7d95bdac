"""Traversal verification (arXiv 2505.12398): from the leaves to the root.

Recursive rejection goes down and decides node by node. Here a path is taken or
left as a whole: a leaf is accepted with the probability that is left of the
ratios of its ancestors, each product cut at 1; if it is rejected, its siblings
have their turn, and then its parent, with what the leaf has not used up. Drafts
that a rejected ancestor would have taken along are accepted more often, and the
distribution of the text is the target's as well. On a chain this is block
verification (arXiv 2403.10444).

Of a node v with the distributions t of the target and d of the drafter, after
any number of rejected children: `accept`, the probability p to accept v; the
residual r(x) = max(up t(x) - down d(x), 0) of all tokens x but the rejected
ones, for which it is kept by itself; and `left`, what is left of the mass of d.
A child x begins with p(x) = min(1, p r(x) left / d(x)). When it is rejected,

    r' = norm(max(p r - d / left, 0)),   p' = S / (S + 1 - p),

S being the mass ahead of `norm`, and x leaves d. So two numbers a node tell the
residual: no distribution of a node has to be kept.

As with recursive rejection, whether a node has another child may depend on
anything but the token of that child: a stochastic beam will do.
"""

import functools
import itertools
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import random, vocabulary
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.verifiers import paths
from decoding_jax.types import (Array, Draws, DraftTree, Layout, NONE,
                                Verifier)


@functools.lru_cache(maxsize=None)
def verifier() -> Verifier:
  """Returns traversal verification, for siblings without replacement. Of a
  chain it is block verification."""
  return Verifier(None, frozenset({Draws.WITHOUT_REPLACEMENT, Draws.PRUNED}),
                  walk)


def find(key, layout: Layout, tree: DraftTree, probs):
  """Returns the last node that is accepted, and weights `[V]` after it."""
  uniforms = random.uniform(key, tree.tokens.shape)
  size = tree_lib.max_branching(layout)
  return (of_tree if size > 1 else of_chain)(uniforms, size, tree, probs)


walk = functools.partial(paths.walk, find)


def of_chain(uniforms, size, tree: DraftTree, probs):
  """Returns the same of a chain: all nodes at once, by `uniforms [M]`."""
  del size
  order = jnp.arange(len(tree.tokens))
  leaf = tree.valid.sum() - 1
  targets = jax.vmap(probs)(order)
  # After the leaf nothing is drafted: what is left over there is all.
  drafts = jnp.where(order[:, None] < leaf, jnp.pad(
      jnp.exp(tree.log_probs), ((0, 1), (0, 0))), 0)
  there = lambda distributions: vocabulary.take(
      distributions[:-1], tree.tokens[1:, None])[:, 0]
  accept = jnp.stack(list(itertools.accumulate(
      _ratio(there(targets), there(drafts)),
      lambda p, ratio: jnp.minimum(1, p * ratio),
      initial=jnp.ones((), targets.dtype))))
  rests = jnp.maximum(accept[:, None] * targets - drafts, 0)
  mass = rests.sum(axis=1)
  hits = (order == 0) | (order <= leaf) & (
      uniforms < paths.left_over(mass, accept))
  node = jnp.max(jnp.where(hits, order, 0)).astype(jnp.int32)
  return node, jnp.where(mass[node] > sampling.MIN_MASS, rests[node],
                         targets[node])


@flax.struct.dataclass
class _State:
  """A traversal on its way; arrays `[M]` have a number for each node."""
  # `[]` int32, the inner node whose children have their turn; in the end the
  # one that is accepted.
  node: Array
  # `[]` int32, that child of it that was just rejected, or `NONE`.
  rejected: Array
  done: Array  # `[]` bool
  accept: Array  # `[M]`, the probability to accept a node, once it is known
  up: Array  # `[M]`, of the residual
  down: Array  # `[M]`, of the residual
  left: Array  # `[M]`, mass of the draft distribution without rejected children
  tried: Array  # `[M]` bool, nodes that have been taken off their parents
  kept: Array  # `[M]`, of such a node, the residual of its parent at its token


class _Node(NamedTuple):
  """The state of the node whose children have their turn."""
  children: Array  # `[K]` int32, in draw order
  valid: Array  # `[K]` bool, which of them there are
  tokens: Array  # `[K]` int32
  rest: Array  # `[V]`, the residual, without what is tried just now
  # `[V]`, the draft distribution without tried children, not normalised.
  drafted: Array


def of_tree(uniforms, size, tree: DraftTree, probs):
  """Returns the same of a tree of at most `size` children a node."""
  ones, zeros = jnp.ones_like(uniforms), jnp.zeros_like(uniforms)
  look = functools.partial(_look, size, tree, probs)

  def step(state):
    node = look(state)
    state, rest = _take_off(state, node)
    return _go_on(uniforms, tree, node._replace(rest=rest), state)

  # Each round needs the distribution of one node, and takes one child off it or
  # is the first there.
  state = jax.lax.while_loop(lambda state: ~state.done, step, _State(
      jnp.int32(0), jnp.int32(NONE), jnp.bool_(False), accept=ones, up=ones,
      down=zeros, left=ones, tried=zeros.astype(bool), kept=zeros))
  return state.node, look(state).rest


def _look(size, tree: DraftTree, probs, state: _State) -> _Node:
  """The node whose children have their turn."""
  children, valid = tree_lib.children(tree, size, state.node)
  tokens = tree.tokens[children]
  target = probs(state.node)
  # Nodes of the last level have no draft distribution, of which nothing is
  # taken off.
  drafted = jnp.exp(tree.log_probs[state.node])
  places = jnp.where(valid & state.tried[children], tokens, len(target))
  put = lambda probs, values: vocabulary.put(probs, places, values)
  rest = state.up[state.node] * target - state.down[state.node] * drafted
  return _Node(children, valid, tokens,
               put(jnp.maximum(rest, 0), state.kept[children]), put(drafted, 0))


def _take_off(state: _State, node: _Node):
  """The state without the child that was just rejected; and the residual."""
  i, child = state.node, state.rejected
  accept, up, down = state.accept[i], state.up[i], state.down[i]
  gain = jnp.maximum(accept * node.rest - node.drafted / state.left[i], 0)
  mass = gain.sum()
  some = mass > sampling.MIN_MASS
  scale = 1 / jnp.where(some, mass, 1)
  rest = jnp.where(some, gain * scale, node.rest)
  tried = state.tried.at[child].set(True)
  # Not 1 less what was taken: a distribution that is nearly certain would have
  # no rest.
  left = vocabulary.put(node.drafted, jnp.where(
      node.children == child, node.tokens, len(rest)), 0).sum()
  taken = state.replace(
      accept=state.accept.at[i].set(paths.left_over(mass, accept)),
      up=state.up.at[i].set(jnp.where(some, accept * up * scale, up)),
      down=state.down.at[i].set(jnp.where(
          some, (accept * down + 1 / state.left[i]) * scale, down)),
      left=state.left.at[i].set(left), tried=tried,
      kept=state.kept.at[node.children].set(jnp.where(
          node.valid & tried[node.children], vocabulary.take(rest, node.tokens),
          state.kept[node.children])))
  pick = functools.partial(jnp.where, child != NONE)
  return jax.tree.map(pick, taken, state), pick(rest, node.rest)


def _go_on(uniforms, tree: DraftTree, node: _Node, state: _State) -> _State:
  """Goes down to the next child, or decides about it or about the node."""
  i = state.node
  untried = node.valid & ~state.tried[node.children]
  rank, some = jnp.argmax(untried), untried.any()
  child, token = node.children[rank], node.tokens[rank]
  accept = jnp.minimum(1, state.accept[i] * _ratio(
      vocabulary.take(node.rest, token) * state.left[i],
      vocabulary.take(node.drafted, token)))
  # A leaf has its turn, and a node when all of its children had theirs.
  down = some & (tree.valid & (tree.parents == child)).any()
  last = jnp.where(some, child, i)
  accept = state.accept.at[last].set(
      jnp.where(some, accept, state.accept[last]))
  hit = ~down & ((last == 0) | (uniforms[last] < accept[last]))
  return state.replace(
      node=jnp.where(down | hit, last, tree.parents[last]).astype(jnp.int32),
      rejected=jnp.where(down | hit, NONE, last).astype(jnp.int32),
      done=hit, accept=accept)


def _ratio(target, draft):
  """Returns target / draft; where the draft is 0 the result is not used."""
  return target / jnp.where(draft > 0, draft, 1)
