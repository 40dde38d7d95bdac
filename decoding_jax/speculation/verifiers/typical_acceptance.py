"""Typical acceptance (Medusa, arXiv 2401.10774, section 2.3.1): lossy.

A drafted token x is accepted after those before it if the target's probability
p(x) exceeds min(epsilon, delta exp(-H)), H being the entropy of p in nats: the
less certain the target is, the less probable a token may be. The longest path
is taken, of equally long ones the most probable. No draft is tested against
chance, so texts are not distributed as the target's.
"""

import functools
import math

import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import vocabulary
from decoding_jax.speculation.verifiers import paths
from decoding_jax.types import Verdict, Verifier
from decoding_jax.validation import values


@functools.lru_cache(maxsize=None)
def verifier(epsilon=0.09, delta=None, greedy: bool = False) -> Verifier:
  """Returns typical acceptance, of children that are drawn in any way.

  Args:
    epsilon: p(x) of more than this is always enough; a number or its text.
    delta: of exp(-H); None for the paper's sqrt(epsilon).
    greedy: whether the target's most probable token follows the path, as in the
      paper; else a token is drawn.

  Returns:
    The verifier; `pair` takes it with `lossy=True` alone. For p = (.5, .4, .08,
    .02) the bar is min(.09, .3 * .37), and tokens 0 and 1 are accepted; with
    `epsilon=0.01` all are.

  Raises:
    ValueError: for numbers that are not in 0 to 1.
  """
  epsilon = _number("epsilon", epsilon)
  delta = math.sqrt(epsilon) if delta is None else _number("delta", delta)
  return Verifier(None, frozenset(), functools.partial(walk, epsilon, delta,
                                                       bool(greedy)))


def _number(name, text):
  try:
    number = float(text)
  except ValueError:
    number = text
  values.check_number(f"{name} of typical acceptance", number, 0, 1)
  return number


def walk(epsilon, delta, greedy, *row) -> Verdict:
  """Accepts the longest typical path; `row` is as of `Verifier.walk`."""
  return paths.walk(functools.partial(_find, epsilon, delta, greedy), *row)


def _find(epsilon, delta, greedy, key, layout, tree, probs):
  """The deepest node whose path is typical, and the weights of what follows."""
  del key, layout
  target = jax.vmap(probs)(jnp.arange(len(tree.tokens)))
  entropies = jax.scipy.special.entr(target).sum(axis=-1)
  chances = vocabulary.take(target[tree.parents], tree.tokens[:, None])[:, 0]
  bars = jnp.minimum(epsilon, delta * jnp.exp(-entropies))[tree.parents]
  # The root is on all paths, and its token has been written.
  chances, bars = chances.at[0].set(1), bars.at[0].set(0)
  typical = tree.valid & (chances > bars)
  reached = jnp.where(tree.mask, typical[None], True).all(axis=1)
  likelihoods = jnp.where(tree.mask, jnp.log(chances), 0).sum(axis=1)
  depths = jnp.where(reached, tree.mask.sum(axis=1), 0)
  node = jnp.argmax(jnp.where(depths == depths.max(), likelihoods, -jnp.inf))
  weights = target[node]
  if greedy:  # Of equal ones the first.
    weights = vocabulary.put(jnp.zeros_like(weights),
                             sampling.most_probable(weights), 1)
  return node, weights
