"""The rule of a verifier alone, integrated over its uniforms at many nodes.

All draws of children are enumerated, and uniforms are quasi-random: a bias of
1e-3 is seen in seconds. Few nodes with many points show a rule that is always
slightly wrong, many nodes with few points one that is wrong at some.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.testing import enumeration, tables
from decoding_jax.types import Draws, Verifier

# Nodes, points of each, and by how much a probability may be off: with two
# children, and with more. The rules of this library are off by half as much,
# which is the error of the sums.
_PASSES = ((8, 1 << 15, 2e-4, 8e-3), (256, 1 << 10, 0.01, 0.03))
_DRAWS = {Draws.PRUNED: Draws.WITHOUT_REPLACEMENT,
          Draws.ONE_IN_BEAM: Draws.ONE_SAMPLED}
# Whose draws are not of one known distribution.
_UNKNOWN = {Draws.OF_SEVERAL, Draws.SHARED_NOISE}


class NodeError(NamedTuple):
  """Where a rule emits another distribution than the target's."""
  drafter: str  # Name of the distribution that children are drawn from
  children: int  # K
  token: int  # Whose probability is off
  # What it is, and the target's
  probability: float
  expected: float
  allowed: float  # By how much it may be off
  node: int  # Number among the nodes that are tested

  def __str__(self):
    return (f"rule, node {self.node} with {self.children} children of drafter "
            f"{self.drafter!r}: token {self.token} has probability "
            f"{self.probability:.5f} instead of {self.expected:.5f}; "
            f"{self.allowed:g} is allowed")


def can_integrate(verifier: Verifier, draws: Draws) -> bool:
  """Returns whether a verifier has a rule for children of a known draw."""
  return verifier.rule is not None and draws not in _UNKNOWN


def errors(verifier: Verifier, draws: Draws, count: int, vocab_size: int = 4):
  """Returns a `NodeError` of the worst node of each pass, if it is wrong.
  `draws` is how up to `count` = K children are drawn; `vocab_size` is at least
  K."""
  count, wrong = min(count, vocab_size), []
  for number, points, *bounds in _PASSES:
    allowed = bounds[count > 2]
    nodes = list(tables.nodes(number, vocab_size))
    uniforms = quasi_random(points, count)
    batch = [_drawn(draws, draft, count) for _, _, draft in nodes]
    size = max(len(tokens) for tokens, _, _ in batch)
    pad = lambda x, n: np.pad(x, ((0, n - len(x)),) + ((0, 0),) * (x.ndim - 1))
    tokens, valid, weights = (np.stack([pad(x[i], size) for x in batch])
                              for i in range(3))
    target, draft = (np.stack([x[i] for x in nodes]) for i in (1, 2))
    probs = np.asarray(_integrals(
        verifier.rule, uniforms, *(jnp.asarray(x, jnp.float32)
                                   for x in (target, draft)),
        tokens, valid, jnp.asarray(weights, jnp.float32)))
    off = np.abs(probs - target)
    node, token = np.unravel_index(off.argmax(), off.shape)
    if not off[node, token] <= allowed:
      wrong.append(NodeError(nodes[node][0], count, int(token),
                             float(probs[node, token]),
                             float(target[node, token]), allowed, int(node)))
  return wrong


def _drawn(draws, draft, count):
  """Tokens `[n, K]`, valid `[n, K]` and probabilities `[n]` of all draws."""
  return tuple(map(np.array, zip(*enumeration.siblings(
      _DRAWS.get(draws, draws), draft, count))))


@functools.partial(jax.jit, static_argnums=0)
def _integrals(rule, uniforms, target, draft, tokens, valid, weights):
  """`[n, V]`, the distributions that a rule emits at n nodes."""
  def at_node(node):
    target, draft, tokens, valid, weights = node

    def of_draw(tokens, valid):
      def emitted(uniforms):
        rank, rest = rule(uniforms, target, draft, tokens, valid)
        return jnp.where(rank < 0, rest, jax.nn.one_hot(
            tokens[rank], len(target), dtype=rest.dtype))
      return jax.vmap(emitted)(uniforms).mean(axis=0)

    return weights @ jax.vmap(of_draw)(tokens, valid)

  return jax.lax.map(at_node, (target, draft, tokens, valid, weights))


def quasi_random(points: int, dimensions: int) -> np.ndarray:
  """Returns `[points, dimensions]` float32 of an evenly spread sequence.
  Multiples of the powers of the root of x^(d+1) = x + 1, the golden ratio for
  one dimension, modulo 1."""
  root = 2.0
  for _ in range(64):
    root = (1 + root)**(1 / (dimensions + 1))
  steps = root**-np.arange(1, dimensions + 1)
  values = (0.5 + np.arange(points)[:, None] * steps) % 1
  return np.minimum(values.astype(np.float32), np.float32(1 - 2.0**-24))
