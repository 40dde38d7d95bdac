"""Relaxed verification of drafted beams (AtSpeed, arXiv 2410.05165): lossy.

A drafted text is kept with probability min(1, p / q) of its last token. If K or
more are kept, the K most probable are the beams. Otherwise the rest are drawn
without replacement from the residual of p, and end the accepted levels. Drafts
are beams and no samples of q, so the result is neither the target's beam search
nor a sample of it.
"""

import jax
import jax.numpy as jnp

from decoding_jax import beam as beam_lib
from decoding_jax.kernels import random

# Below all texts that are accepted stand those that fill up.
_BELOW = 1e5


def expand(drafted):
  """Makes a `Level.expand` of a drafted level. `drafted` are tokens, nodes of
  their parents, valid and log q, `[B, N]` each."""
  def of_rows(keys, context, log_probs, texts, width):
    del context
    tokens, parents, beam = jax.vmap(
        lambda *row: _row(width, *row))(keys, log_probs, texts.alive,
                                        texts.beam, texts.state, *drafted)
    return tokens, parents, beam, texts.counts

  return of_rows


def _row(width, key, log_probs, alive, beam, state, tokens, parents, valid,
         drafts):
  match = (parents[:, None] == state[None]) & valid[:, None]
  # Drafts that continue no beam are not written.
  at = jnp.where(match.any(axis=1), jnp.argmax(match, axis=1), len(state))
  blank = jnp.zeros_like(log_probs)
  q = blank.at[at, tokens].set(jnp.exp(drafts), mode="drop")
  is_drafted = (blank > 0).at[at, tokens].set(True, mode="drop")
  keys, p = random.split(key, 2), jnp.exp(log_probs)
  uniforms = random.uniform(keys[0], (log_probs.size,)).reshape(p.shape)
  # A text that has ended stays, whoever drafts.
  accepted = jnp.where(alive[:, None], is_drafted & (uniforms * q < p), p > 0)
  totals = beam.log_probs[:, None] + log_probs
  rest = beam.log_probs[:, None] + jnp.log(jnp.maximum(p - q, 0))
  noise = random.gumbel(keys[1], log_probs.size).reshape(p.shape)
  scores = jnp.where(accepted, totals, rest + noise - _BELOW)
  tokens, parents, beam = beam_lib.penalised(
      log_probs, beam, width, jnp.where(totals > -jnp.inf, totals - scores, 0))
  log_probs = jnp.where(beam.scores > -jnp.inf, beam.log_probs, -jnp.inf)
  order = jnp.argsort(-log_probs, stable=True)
  return tokens[order], parents[order], beam_lib.Beam(log_probs[order],
                                                      log_probs[order])
