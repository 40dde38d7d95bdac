"""Several independent paths, of which one is chosen and verified as a block.

At each node one child is chosen of those that were drawn, by what target and
drafter say of their tokens; the path of these choices is verified as a block
(Sun et al., arXiv 2403.10444), its draft distribution being that of what is
chosen instead of d. Three ways to choose:

    greedy      the token of the largest t / d, after "Greedy multi-path block
                verification" (GBV, arXiv 2602.16961)
    sequential  the first that K-SEQ accepts, else the last one, after
                SpecTr-GBV (arXiv 2604.25925)
    transport   in proportion to weights by which what is chosen comes as near
                to t as it can: the convex problem of "Global resolution"
                (arXiv 2511.15898), to which K children reach the largest
                acceptance that any rule can have

Of the three papers only the abstracts could be read. What is here was derived
from them, and may differ: to verify what transport chooses as a block, above
all, is not in the third.

Why it is exact. Let n children come from a node, independent samples of d, and
let a choice that sees their tokens, and none below them, have the law c(x). How
many of the paths go on below the child that is chosen is a second draw, given
x and what was seen above. Take both for one token of an alphabet of pairs: the
drafter's law of a pair is c(x) times that of the number, and the target's is
taken to be t(x) times the same. Their ratio is t(x) / c(x), their residual
max(a t - c, 0) times that law; so block verification needs no more than c, and
its text has the law t, whatever the number is. c depends on n, on t, on d and
on a, all of which are known before the children are.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import kernels, sampling
from decoding_jax.kernels import random, vocabulary
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.speculation.verifiers import paths, sequential_selection
from decoding_jax.types import (Array, Draws, DraftTree, Layout, Verdict,
                                Verifier)

# Tokens with a weight of their own, by d; all others share one.
_OWN = 64
# Rounds that fit the weights, how far each goes, and the least weight.
_ROUNDS, _POWER, _LEAST = 40, 1.5, 1e-5
# Logarithms of the times over which races are integrated; the error is 1e-6.
_STEP = 0.5
_TIMES = np.exp(np.arange(-14.0, 15.0, _STEP)).astype(np.float32)


class Choice(NamedTuple):
  """The choice of a node's child."""
  chances: Array  # `[K]`, of each child, given their tokens
  law: Array  # `[V]`, of the token that is chosen, before they are drawn


def greedy(mass, draft, tokens, valid) -> Choice:
  """Chooses the largest mass / d of the first m of `tokens [K]` drawn from
  `draft [V]`, by m that accepts most at this node: the largest of many samples
  may be too far from the target. For t = (.5, .3, .2), d = (.2, .5, .3) and two
  children the order is 1, 2, 0 and the distribution (.36, .25, .39)."""
  order = jnp.argsort(paths.share(mass, draft))
  places = jnp.zeros_like(order).at[order].set(jnp.arange(len(order)))
  upto = jnp.cumsum(draft[order])
  below = jnp.concatenate([jnp.zeros_like(upto[:1]), upto[:-1]])

  def longer(state, _):
    # (upto^m - below^m) / d, without cancellation.
    gain, power = state
    return (upto * gain + power * below, power * below), gain

  ones = jnp.ones_like(draft)
  _, gains = jax.lax.scan(longer, (ones, ones), length=len(tokens))
  laws = gains[:, places] * draft[None]
  worth = jnp.minimum(mass[None], laws).sum(axis=1)
  most = jnp.argmax(jnp.where(jnp.arange(len(tokens)) < valid.sum(), worth, -1))
  tried = valid & (jnp.cumsum(valid) <= most + 1)
  best = jnp.argmax(jnp.where(tried, places[tokens], -1))
  return Choice((jnp.arange(len(tokens)) == best).astype(mass.dtype),
                laws[most])


def sequential(mass, draft, tokens, valid) -> Choice:
  """Chooses the first child that K-SEQ accepts, or else the last one."""
  count = valid.sum()
  rho, beta = sequential_selection.k_seq_rho(mass, draft, count)
  taken = jnp.minimum(mass / rho, draft)
  left = jnp.maximum(1 - beta, 0)
  hits = jnp.where(valid, vocabulary.take(paths.share(taken, draft), tokens), 0)
  last = valid & (jnp.cumsum(valid) == count)
  before = jnp.concatenate([jnp.ones_like(hits[:1]), jnp.cumprod(1 - hits)])
  chances = before[:-1] * jnp.where(last, 1, hits)
  powers = left**jnp.arange(len(tokens))
  some = jnp.where(jnp.arange(len(tokens)) < count, powers, 0).sum()
  return Choice(chances, taken * some + (draft - taken) * left**jnp.maximum(
      count - 1, 0))


def transport(mass, draft, tokens, valid) -> Choice:
  """Chooses in proportion to weights that bring the result close to the target.

  Weights of at most 1 that minimise E log(sum of w(x_k)) - sum of t log w make
  the choice's distribution t, except that tokens of weight 1 have less and
  tokens of weight 0 more: sum of min(t, distribution) is then maximal. The
  choice is the first to ring at exponential times of these rates, so sums over
  draws are integrals over time.
  """
  size = len(draft)
  drawn, own = vocabulary.top_k(draft, min(_OWN, size))
  wanted = vocabulary.take(mass, own)
  # The last class has all other tokens.
  rest = lambda x: vocabulary.put(x, own, 0).sum()[None]
  drawn = jnp.concatenate([drawn, rest(draft)])
  wanted = jnp.concatenate([wanted, rest(mass)])
  wanted = wanted / jnp.maximum(wanted.sum(), sampling.MIN_MASS)
  gains = functools.partial(_race, drawn, valid.sum())

  def fit(_, weights):
    law = drawn * gains(weights)
    scale = jnp.where(law > 0, wanted / jnp.where(law > 0, law, 1), 1)
    return jnp.clip(weights * scale**_POWER, _LEAST, 1)

  weights = jax.lax.fori_loop(0, _ROUNDS, fit, jnp.ones_like(drawn))
  spread = lambda x: vocabulary.put(jnp.full_like(draft, x[-1]), own, x[:-1])
  rates = jnp.where(valid, vocabulary.take(spread(weights), tokens), 0)
  law = spread(gains(weights)) * draft
  return Choice(paths.share(rates, rates.sum()), paths.share(law, law.sum()))


def _race(drawn, count, weights):
  """Returns chosen over drawn probability of each class of tokens, `[C]`."""
  times = jnp.asarray(_TIMES)[:, None]
  quiet = jnp.exp(-weights[None] * times)
  others = (quiet @ drawn)[:, None]**jnp.maximum(count - 1, 0)
  return count * weights * (quiet * others * times).sum(axis=0) * _STEP


class Visit(NamedTuple):
  """A node of the path that is chosen."""
  node: Array  # `[]` int32
  accept: Array  # `[]`, the probability that is left to accept it
  stop: Array  # `[]`, the probability that the path ends there, if not below
  rest: Array  # `[V]`, weights of the token after it then
  # `[K]` int32, those with the same token being the first of them.
  children: Array
  chances: Array  # `[K]`, that they are next; 0 of a leaf
  accepts: Array  # `[K]`, what is left to accept each of them


def visit(choose, size: int, tree: DraftTree, probs, node, accept) -> Visit:
  """Looks at a node of the path, of at most `size` children. `choose` is one of
  the three above; `accept []` is what is left of the ratios of its
  ancestors."""
  children, valid = tree_lib.children(tree, size, node)
  tokens = tree.tokens[children]
  target = probs(node)
  mass = accept * target
  some = valid.any()
  # A node of the last level has no draft distribution, and no child either.
  chances, law = choose(mass, jnp.exp(tree.log_probs[node]).astype(mass.dtype),
                        tokens, valid)
  law = jnp.where(some, law, 0)
  rest = jnp.maximum(mass - law, 0)
  left = rest.sum()
  twins = jnp.argmax(valid[None] & (tokens[None] == tokens[:, None]),
                     axis=1)
  return Visit(node, accept, paths.left_over(left, accept),
               jnp.where(left > sampling.MIN_MASS, rest, target),
               children[twins].astype(jnp.int32),
               jnp.where(some & valid, chances, 0),
               jnp.minimum(1, paths.share(*(
                   vocabulary.take(x, tokens) for x in (mass, law)))))


def find(choose, key, layout: Layout, tree: DraftTree, probs):
  """Draws a path, and the node at which it ends: `find` of `paths.walk`."""
  levels = tree_lib.depth(layout) + 1
  draw_key, stop_key = random.split(key)
  look = functools.partial(visit, choose, tree_lib.max_branching(layout), tree,
                           probs)

  def step(at, key):
    node, accept, alive = at
    here = look(node, accept)
    rank = kernels.gumbel_top_k(key, jnp.log(here.chances), 1)[1].squeeze(0)
    below = here.children[rank], here.accepts[rank], (here.chances > 0).any()
    return (*below[:2], alive & below[2]), (
        node, jnp.where(alive, here.stop, 0), here.rest)

  one = jnp.ones_like(probs(0), shape=())
  _, (nodes, stops, rests) = jax.lax.scan(
      step, (jnp.int32(0), one, jnp.bool_(True)),
      random.split(draw_key, levels))
  order = jnp.arange(levels)
  hits = (order == 0) | (random.uniform(stop_key, (levels,)) < stops)
  last = jnp.max(jnp.where(hits, order, 0))
  return nodes[last], rests[last]


def walk(choose, *args) -> Verdict:
  """Accepts a path of what `choose` chooses, in one row: `Verifier.walk`."""
  return paths.walk(functools.partial(find, choose), *args)


@functools.lru_cache(maxsize=None)
def verifier(choose) -> Verifier:
  """Returns the verifier of what `choose` chooses, for independent samples."""
  return Verifier(None, frozenset({Draws.WITH_REPLACEMENT}),
                  functools.partial(walk, choose))


gbv, spectr_gbv, global_resolution = (
    functools.partial(verifier, choose)
    for choose in (greedy, sequential, transport))
