"""Recursive rejection sampling: what is rejected leaves the target's mass."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import vocabulary
from decoding_jax.types import Draws, NONE, Verifier


@functools.lru_cache(maxsize=None)
def recursive(replacement: bool) -> Verifier:
  """Recursive rejection sampling (arXiv 2402.14160, section 3.1).

  Without replacement a rejected sibling leaves the draft distribution; with it
  the distribution stays, which is multi-round rejection (SpecInfer, arXiv
  2305.09781).

  Args:
    replacement: how the siblings are drawn.

  Returns:
    The verifier. For t = (.5, .3, .2), d = (.2, .5, .3), siblings 1 and 0 and
    uniforms .9, .9: .9 * .5 < .3 fails, and the residual is (1, 0, 0); then
    sibling 0 has draft probability .2 / (1 - .5), and .9 * .4 < 1 holds.
  """
  def rule(uniforms, target, draft, tokens, valid):
    ranks = jnp.arange(len(tokens), dtype=jnp.int32)

    def untested(state):
      _, _, rank, accepted = state
      return (accepted == NONE) & jnp.any(valid & (ranks >= rank))

    def test(state):
      target, draft, rank, accepted = state
      token = tokens[rank]
      hit = valid[rank] & (uniforms[rank] * vocabulary.take(
          draft, token) < vocabulary.take(target, token))
      missed = valid[rank] & ~hit
      rest = sampling.residual(target, draft)
      if not replacement:
        draft = jnp.where(missed, _without(draft, token), draft)
      return (jnp.where(missed, rest, target), draft, rank + 1,
              jnp.where(hit, rank, accepted))

    rest, _, _, rank = jax.lax.while_loop(
        untested, test, (target, draft, jnp.int32(0), jnp.int32(NONE)))
    return rank, rest

  return Verifier(rule, frozenset({
      Draws.WITH_REPLACEMENT} if replacement else {
          Draws.WITHOUT_REPLACEMENT, Draws.PRUNED}))


@functools.lru_cache(maxsize=None)
def multi_step() -> Verifier:
  """Multi-step speculative sampling (arXiv 2305.09781, algorithm 2).

  Each child is tested against the distribution that it was drawn from, and what
  that leaves of the target's is the target of the next. The paper takes the
  children in random order; here the order is their models'.

  Returns:
    The verifier, for samples of several distributions. For t = (.5, .3, .2),
    child 1 of d = (.2, .5, .3), child 0 of (.6, .2, .2) and uniforms .9, .9:
    .9 * .5 < .3 fails, and the residual is (1, 0, 0); .9 * .6 < 1 holds.
  """
  def rule(uniforms, target, draft, tokens, valid):
    def test(carry, child):
      target, accepted = carry
      uniform, draft, token, valid, rank = child
      tested = valid & (accepted == NONE)
      hit = tested & (uniform * vocabulary.take(draft, token) <
                      vocabulary.take(target, token))
      rest = sampling.residual(target, draft)
      return (jnp.where(tested & ~hit, rest, target),
              jnp.where(hit, rank, accepted)), None

    ranks = jnp.arange(len(tokens), dtype=jnp.int32)
    (rest, rank), _ = jax.lax.scan(test, (target, jnp.int32(NONE)), (
        uniforms, draft, tokens, valid, ranks))
    return rank, rest

  return Verifier(rule, frozenset({Draws.OF_SEVERAL}))


def _without(draft, token):
  """The distribution of what is left when a token has been drawn."""
  rest = vocabulary.put(draft, token, 0)
  mass = jnp.sum(rest)
  return rest / jnp.where(mass > 0, mass, 1)
