"""Diverse beam search (arXiv 1610.02424): beams in groups that differ."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.search import beam, level_search
from decoding_jax.types import Method
from decoding_jax.validation import values

EXAMPLES = (dict(num_beams=4, num_groups=2),)


def make(num_beams: int, num_groups: int, diversity: float = 0.5,
         length_penalty: float = 0.0) -> Method:
  """Makes beam search in groups with Hamming diversity (section 3).

  At each level groups choose one after the other: a token loses `diversity`
  for each time that an earlier group has taken it at this level.

  Args:
    num_beams: W, of all groups.
    num_groups: groups, a divisor of W.
    diversity: lambda, in nats.
    length_penalty: see `beam_search`, but for ended texts, which stay beams.

  Returns:
    The method; `stats.extra` has all beams, see `level_search.decoder`.
  """
  values.check_positives(num_beams=num_beams, num_groups=num_groups)
  if num_beams % num_groups:
    raise ValueError(f"num_groups={num_groups}: a divisor of num_beams="
                     f"{num_beams} is needed.")
  values.check_number("diversity", diversity, 0.0)
  values.check_number("length_penalty", length_penalty)
  expand = level_search.each_row(
      functools.partial(_expand, num_groups, diversity))
  level = level_search.Level(expand, level_search.per_length(length_penalty))
  decoder = level_search.decoder(level, num_beams)
  return Method(f"diverse_beam_search({num_groups}x{num_beams // num_groups})",
                sampled=decoder, greedy=decoder)


def _expand(num_groups, diversity, key, log_probs, alive, beams, width):
  del key
  above, size = len(alive), width // num_groups

  def pick(taken, group):
    log_probs, alive, beams = group
    # A beam that has ended goes on by its end, which is no choice.
    penalty = diversity * jnp.where(alive[:, None], taken, 0)
    tokens, parents, beams = beam.penalised(log_probs, beams, size, penalty)
    taken = taken.at[tokens].add(alive[parents].astype(jnp.float32))
    return taken, (tokens, parents, beams)

  def split(x):
    """Gives each group its parents: the root for all, or its own beams."""
    return (jnp.broadcast_to(x, (num_groups, *x.shape)) if above == 1 else
            x.reshape(num_groups, size, *x.shape[1:]))

  _, (tokens, parents, beams) = jax.lax.scan(
      pick, jnp.zeros(log_probs.shape[-1], jnp.float32),
      jax.tree.map(split, (log_probs, alive, beams)))
  if above > 1:
    parents += size * jnp.arange(num_groups, dtype=parents.dtype)[:, None]
  return jax.tree.map(jnp.ravel, (tokens, parents, beams))
