"""Rules that follow the target's own token: exact for any draws of children."""

import functools

import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import vocabulary
from decoding_jax.speculation.verifiers import descent
from decoding_jax.types import Draws, Verifier


@functools.lru_cache(maxsize=None)
def match() -> Verifier:
  """Returns the verifier of temperature 0, however children are drawn. It
  follows the child that is the target's most probable token."""
  def rule(uniforms, target, draft, tokens, valid):
    del uniforms, draft
    hits = valid & (tokens == sampling.most_probable(target))
    return descent.first(hits), target

  return Verifier(rule, frozenset(Draws))


@functools.lru_cache(maxsize=None)
def sample_and_match() -> Verifier:
  """Draws the target's token, and follows the child that it is, if any.

  The target's distribution is kept whatever the children are: tables, n-grams,
  beams, top-k trees, at any temperature. Instead of drawing the token at once,
  children are tested one after the other, child k accepted with probability
  t(x_k) over the mass of t that was not tested before: the same distribution,
  and at a node without children nothing is drawn in vain. Of children with the
  same token the first one is tested.

  Returns:
    The verifier. For t = (.5, .3, .2) and children 1, 0: child 1 is accepted
    with probability .3, else child 0 with .5 / .7, else token 2 is emitted.
  """
  def rule(uniforms, target, draft, tokens, valid):
    del draft
    ranks = jnp.arange(len(tokens))
    twins = (tokens[:, None] == tokens[None]) & valid[None] & (
        ranks[None] < ranks[:, None])
    chances = jnp.where(valid & ~twins.any(axis=1),
                        vocabulary.take(target, tokens), 0)
    rest = vocabulary.put(target, jnp.where(valid, tokens, len(target)), 0)
    # Sums of what is left: 1 less what was tested would cancel.
    left = rest.sum() + jnp.cumsum(chances[::-1])[::-1]
    # A rest of no mass is of use only where rounding has spared all children.
    rest = jnp.where(rest.sum() > 0, rest, target)
    return descent.first(uniforms * left < chances), rest / rest.sum()

  return Verifier(rule, frozenset(Draws))
