"""One level of a beam search, by probability or perturbed probability.

With perturbation this is stochastic beam search (Kool et al. 2019, algorithm
1): the beam is a sample without replacement of the distribution over sequences.
"""

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import random, vocabulary
from decoding_jax.types import Array

# What a sample counts for at least; rounding may leave nothing.
_LEAST = 1e-9


@flax.struct.dataclass
class Beam:
  """The scores of the nodes of a level, in one row."""
  # `[W]` float32, phi, the log-probability of the path to the node.
  log_probs: Array
  # `[W]` float32, descending: perturbed phi, or phi itself; -inf marks a node
  # of probability zero.
  scores: Array


def root() -> Beam:
  """Returns the beam that holds a root alone."""
  return Beam(jnp.zeros(1, jnp.float32), jnp.zeros(1, jnp.float32))


def plain(key, log_probs, beam: Beam, width: int):
  """Selects the `width` most probable extensions of `log_probs [W, V]`. Returns
  tokens `[width]` int32, parents `[width]` int32 and the new `Beam`. `key` is
  not used: all functions of this module that draw take one."""
  del key
  return penalised(log_probs, beam, width, 0.0)


def penalised(log_probs, beam: Beam, width: int, penalty):
  """Selects by log-probability less a penalty in nats, of this level alone."""
  totals = beam.log_probs[:, None] + log_probs
  scores, tokens = sampling.top_k(totals - penalty,
                                  min(width, log_probs.shape[-1]))
  totals = vocabulary.take(totals, tokens)
  return keep_best(width, tokens, totals, scores)


def perturbed(key, log_probs, beam: Beam, width: int):
  """Draws a level of stochastic beam search; scores are perturbed. Only the
  `width` largest Gumbels under each parent can be selected, and conditioning
  them on their maximum keeps their order. So only these are conditioned, not
  the vocabulary."""
  return perturbed_by(random.split(key, len(log_probs)), log_probs, beam, width)


def perturbed_by(keys, log_probs, beam: Beam, width: int):
  """Does `perturbed` with a random key `[W]` for each node."""
  size = min(width, log_probs.shape[-1])
  gumbels, tokens = jax.vmap(sampling.gumbel_top_k, (0, 0, None))(
      keys, beam.log_probs[:, None] + log_probs, size)
  totals = beam.log_probs[:, None] + vocabulary.take(log_probs, tokens)
  # Not gumbels[:, :1]: XLA turns a sliced top-k into a full sort.
  peak = gumbels.max(axis=-1, keepdims=True)
  scores = sampling.truncate_gumbel(gumbels, peak, beam.scores[:, None])
  return keep_best(width, tokens, totals, scores)


def independent(key, log_probs, beam: Beam, width: int):
  """Draws one token after each node, or `width` of them after a root."""
  parents = jnp.minimum(jnp.arange(width, dtype=jnp.int32), len(log_probs) - 1)
  keys, log_probs = random.split(key, width), log_probs[parents]
  tokens = jax.vmap(sampling.draw)(keys, log_probs)[:, None]
  totals = beam.log_probs[parents] + vocabulary.take(
      log_probs, tokens)[:, 0]
  return tokens[:, 0], parents, Beam(totals, totals)


def with_one_sample(key, log_probs, beam: Beam, width: int):
  """Selects the most probable extensions, and draws one of the rest of each.

  A node that has children has first a sample of what the others leave, which
  has the score of all that they leave, and then its most probable tokens. So
  the nodes are known before anything is drawn at this level. Children are in
  that order, not by their scores.
  """
  size = min(width, log_probs.shape[-1])
  best, tokens = sampling.top_k(log_probs, size)
  # The first child is worth its parent, and one more what a fixed token adds;
  # the last token with mass is left to the sample.
  # Not best[:, :-1]: XLA turns a sliced top-k into a full sort.
  before = jnp.maximum(jnp.arange(size) - 1, 0)
  gains = jnp.where(jnp.arange(size)[None] > 0, best[:, before], 0)
  support = (log_probs > -jnp.inf).sum(axis=-1, keepdims=True)
  ranks = jnp.broadcast_to(jnp.arange(size, dtype=jnp.int32), tokens.shape)
  gains = beam.log_probs[:, None] + jnp.where(ranks < support, gains, -jnp.inf)
  ranks, parents, kept = keep_best(width, ranks, gains, gains)
  some = kept.scores > -jnp.inf
  theirs = some[None] & (parents[None] == jnp.arange(len(tokens))[:, None])
  fixed = jnp.arange(size)[None] < theirs.sum(axis=1, keepdims=True) - 1
  # The first token of a draw without replacement that is not fixed is a sample
  # of the tokens that are not fixed. Its value depends on the number drawn.
  _, drawn = jax.vmap(sampling.gumbel_top_k, (0, 0, None))(
      random.split(key, len(tokens)), log_probs, size)
  is_fixed = fixed[:, None] & (drawn[:, :, None] == tokens[:, None])
  drawn = jnp.take_along_axis(drawn, jnp.argmin(
      is_fixed.any(axis=2), axis=1, keepdims=True), axis=1)
  left = 1 - jnp.where(fixed, jnp.exp(best), 0).sum(axis=1, keepdims=True)
  after = lambda first, others: jnp.where(
      ranks > 0, others[parents, before[ranks]], first[parents, 0])
  totals = beam.log_probs[parents] + after(
      jnp.log(jnp.maximum(left, _LEAST)), best)
  return after(drawn, tokens), parents, Beam(
      jnp.where(some, totals, -jnp.inf), kept.scores)


def split(candidates, ends, ended: Beam, above: int, penalised_by, longest_by,
          width: int):
  """Selects W texts that go on, and the best W that have ended.

  As in transformers: ended texts take no slot of the others, and only those
  that end among the `width` best of the candidates (tokens `[K]`, parents
  `[K]`, `Beam`, K >= W) count. Scores of `ended` are penalised: `penalised_by`
  divides log-probabilities of candidates, `longest_by` of the longest texts.
  `above` is the number of parents before the ended texts. A text that cannot
  get among the ended ones any more has probability 0. Returns tokens and
  parents `[2 W]` and the `Beam` of both.
  """
  tokens, parents, drawn = candidates
  size = len(ended.scores)
  own = jnp.where(ends & (jnp.arange(len(ends)) < width),
                  drawn.log_probs / penalised_by, -jnp.inf)
  scores, last = jax.lax.top_k(jnp.concatenate([ended.scores, own]), width)
  going, first = jax.lax.top_k(jnp.where(ends, -jnp.inf, drawn.scores), width)
  join = lambda mine, theirs: jnp.concatenate(
      [mine[first], jnp.concatenate([theirs, mine])[last]])
  log_probs = join(drawn.log_probs, ended.log_probs)
  possible = jnp.concatenate(
      [(going > -jnp.inf) & (log_probs[:width] / longest_by > scores[-1]),
       scores > -jnp.inf])
  drop = lambda x: jnp.where(possible, x, -jnp.inf)
  return (join(tokens, jnp.zeros(size, tokens.dtype)),
          join(parents, above + jnp.arange(size, dtype=parents.dtype)),
          Beam(drop(log_probs), drop(join(drawn.scores, ended.log_probs))))


def keep_best(width: int, tokens, totals, scores):
  """Selects `width` of `[W, K]` candidates by score, -inf fills up."""
  missing = max(0, width - tokens.size)
  fill = lambda x, value: jnp.pad(x.ravel(), (0, missing),
                                  constant_values=value)
  scores, best = jax.lax.top_k(fill(scores, -jnp.inf), width)
  # `//` handles signs, which takes three more operations.
  parents = jax.lax.div(best, jnp.int32(tokens.shape[-1]))
  return (fill(tokens, 0)[best], jnp.minimum(parents, len(tokens) - 1),
          Beam(fill(totals, -jnp.inf)[best], scores))
