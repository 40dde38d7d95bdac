"""K-SEQ: siblings are accepted one after the other, by one division factor."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import vocabulary
from decoding_jax.speculation.verifiers import descent
from decoding_jax.types import Draws, Verifier

# Halvings of the interval that K-SEQ's rho lies in.
_BISECTIONS = 30


@functools.lru_cache(maxsize=None)
def k_seq() -> Verifier:
  """Returns K-SEQ of SpecTr (arXiv 2310.15141), for independent siblings."""
  def rule(uniforms, target, draft, tokens, valid):
    count = valid.sum()
    rho, beta = k_seq_rho(target, draft, count)
    hits = valid & (uniforms * rho * vocabulary.take(
        draft, tokens) < vocabulary.take(target, tokens))
    some = (count > 0) & (beta > 0)
    scale = jnp.where(some, _any_of(beta, count) / jnp.where(some, beta, 1), 0)
    return descent.first(hits), sampling.residual(
        target, scale * jnp.minimum(target / rho, draft))

  return Verifier(rule, frozenset({Draws.WITH_REPLACEMENT}))


def k_seq_rho(target, draft, count):
  """Returns the division factor of K-SEQ for `count []` siblings.

  rho `[]` is in [1, max(count, 1)]; beta `[]` is the mass of
  min(target / rho, draft), of distributions `[V]`. Every rho at or above the
  root of 1 - (1 - beta)^count = rho beta is exact; this is the upper end of the
  last interval, so never below the root.
  """
  def mass(rho):
    return jnp.sum(jnp.minimum(target / rho, draft))

  def halve(_, bounds):
    low, high = bounds
    rho = (low + high) / 2
    beta = mass(rho)
    above = _any_of(beta, count) <= rho * beta
    return jnp.where(above, low, rho), jnp.where(above, rho, high)

  one = jnp.ones((), target.dtype)
  _, rho = jax.lax.fori_loop(0, _BISECTIONS, halve,
                             (one, jnp.maximum(count, 1).astype(one.dtype)))
  return rho, mass(rho)


def _any_of(beta, count):
  """1 - (1 - beta)^count, without cancellation; for no siblings as for one."""
  exponent = jnp.maximum(count, 1).astype(jnp.result_type(beta))
  return -jnp.expm1(exponent * jnp.log1p(-jnp.minimum(beta, 1)))
