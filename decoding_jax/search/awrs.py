"""Adaptive weighted rejection sampling (AWRS, arXiv 2504.05410).

Tokens are drawn without replacement until x passes a test, after rejecting the
set R; y is the next draw. The weight of x is 1 - p(R) if y passes as well, else
p(x). Given R and x its mean is the mass of all tokens that pass, so x with its
weight is worth a draw of the unnormalised restricted distribution.
"""

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import vocabulary
from decoding_jax.types import Array


@flax.struct.dataclass
class Draw:
  """Tokens with their weights."""
  tokens: Array  # `[...]` int32; 0 if none passes
  log_weights: Array  # `[...]` float32; -inf if none passes
  checks: Array  # `[...]` int32, tokens that were tested


def draw(perturbed, log_probs, passes, active) -> Draw:
  """Draws tokens that pass a test, in descending order of `perturbed`.
  `perturbed [..., V]` are log-probabilities with Gumbel noise, and `passes`
  maps tokens `[...]` to bool `[...]`. Nothing is drawn where not `active
  [...]`."""
  order = jnp.arange(log_probs.shape[-1])
  order = order.reshape((1,) * (log_probs.ndim - 1) + order.shape)
  probs = jnp.exp(log_probs)
  one = lambda x: x[..., None]

  def step(carry):
    rest, drawn, own, left, searching, active = carry
    token = sampling.most_probable(rest)
    there = active & (rest.max(axis=-1) > -jnp.inf)
    passed = there & passes(token)
    # Sum what is left instead of computing 1 - p(R), which cancels.
    mass = jnp.where(rest > -jnp.inf, probs, 0).sum(axis=-1)
    first, second = searching & passed, active & ~searching
    own_mass = vocabulary.take(probs, one(token))[..., 0]
    drawn = drawn.replace(
        tokens=jnp.where(first, token, drawn.tokens),
        log_weights=jnp.where(second, jnp.log(jnp.where(passed, left, own)),
                              drawn.log_weights),
        checks=drawn.checks + there.astype(jnp.int32))
    own, left = jnp.where(first, own_mass, own), jnp.where(first, mass, left)
    rest = jnp.where(one(there) & (order == one(token)), -jnp.inf, rest)
    return (rest, drawn, own, left, searching & ~first, there & ~second)

  zeros = jnp.zeros(active.shape, jnp.float32)
  none = Draw(zeros.astype(jnp.int32), jnp.full_like(zeros, -jnp.inf),
              zeros.astype(jnp.int32))
  carry = (perturbed, none, zeros, zeros, jnp.ones_like(active), active)
  return jax.lax.while_loop(lambda carry: carry[-1].any(), step, carry)[1]
