"""One level of a beam, by probability or by perturbed probability.

With perturbation this is stochastic beam search (Kool et al. 2019, algorithm
1): the beam is a sample without replacement of the distribution over sequences.
"""

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import buffers, random
from decoding_jax.types import Array


@flax.struct.dataclass
class Beam:
  """Scores of the nodes of a level, in one row.

  Attributes:
    log_probs: `[W]` float32, phi, log-probability of the path to the node.
    scores: `[W]` float32, descending: perturbed phi, or phi itself; -inf marks
      a node of probability zero.
  """
  log_probs: Array
  scores: Array


def root() -> Beam:
  """The beam that holds a root alone."""
  return Beam(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))


def plain(key, log_probs, beam: Beam, width: int):
  """The `width` most probable extensions.

  Args:
    key: not used; there so that both kinds of level are called alike.
    log_probs: `[W, V]` float32, distributions of the next token.
    beam: the nodes that are extended.
    width: nodes to keep, at most V; static.

  Returns:
    tokens `[width]` int32, parents `[width]` int32 and the new `Beam`.
  """
  del key
  return penalised(log_probs, beam, width, 0.0)


def penalised(log_probs, beam: Beam, width: int, penalty):
  """The `width` extensions of the highest log-probability less a penalty.

  Args:
    log_probs: `[W, V]` float32, distributions of the next token.
    beam: the nodes that are extended.
    width: nodes to keep, at most V; static.
    penalty: broadcasts to `[W, V]`; it counts at this level alone.

  Returns:
    As `plain`; scores are less the penalty, log-probabilities are not.
  """
  totals = beam.log_probs[:, None] + log_probs
  scores, tokens = sampling.top_k(totals - penalty,
                                  min(width, log_probs.shape[-1]))
  totals = buffers.take_along(totals, tokens, axis=-1)
  return _keep(width, tokens, totals, scores)


def perturbed(key, log_probs, beam: Beam, width: int):
  """A level of stochastic beam search.

  Only the `width` largest Gumbels under each parent can survive, and
  conditioning them on their maximum keeps their order: so it is done for those
  alone, not for the vocabulary.

  Args:
    key: a random key.
    log_probs: `[W, V]` float32, distributions of the next token.
    beam: the nodes that are extended.
    width: nodes to keep, at most V; static.

  Returns:
    As `plain`; scores are perturbed log-probabilities of paths.
  """
  size = min(width, log_probs.shape[-1])
  keys = random.split(key, len(log_probs))
  gumbels, tokens = jax.vmap(sampling.gumbel_top_k, (0, 0, None))(
      keys, beam.log_probs[:, None] + log_probs, size)
  totals = beam.log_probs[:, None] + buffers.take_along(
      log_probs, tokens, axis=-1)
  # Not gumbels[:, :1]: XLA would make a full sort of a top-k that is sliced.
  peak = gumbels.max(axis=-1, keepdims=True)
  scores = sampling.truncate_gumbel(gumbels, peak, beam.scores[:, None])
  return _keep(width, tokens, totals, scores)


def _keep(width, tokens, totals, scores):
  """Keeps the best of all `[W, K]` candidates."""
  scores, best = jax.lax.top_k(scores.ravel(), width)
  # Python's quotient looks at the signs, in three operations more.
  parents = jax.lax.div(best, jnp.int32(tokens.shape[-1]))
  return (tokens.ravel()[best], parents,
          Beam(totals.ravel()[best], scores))
