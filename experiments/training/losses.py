"""Training losses of language models and of reward models.

Every loss is a mean over positions, with weights. One of `PATHS` compares the
distributions of all levels that a head drafts after a position.
"""

import jax
import jax.numpy as jnp
import optax


def cross_entropy(logits, targets, weights=None):
  """Returns the mean of -log p: logits `[B, T, V]`, targets `[B, T]`."""
  return jnp.average(optax.softmax_cross_entropy_with_integer_labels(
      logits.astype(jnp.float32), targets), weights=weights)


def forward_kl(teacher, student, weights=None):
  """Returns the mean of KL(teacher || student), from logits `[B, T, V]`."""
  teacher, student = _log_probs(teacher, student)
  divergence = jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)
  return jnp.average(divergence, weights=weights)


def reverse_kl(teacher, student, weights=None):
  """Returns the mean of KL(student || teacher), from logits `[B, T, V]`."""
  return forward_kl(student, teacher, weights)


def total_variation(teacher, student, weights=None):
  """Returns the mean of half the L1 distance, the rejection rate."""
  # A token of the student's distribution d, accepted with probability min(1, t
  # / d), passes with probability sum_x min(t, d) = 1 - TV(t, d).
  teacher, student = _log_probs(teacher, student)
  distance = jnp.sum(jnp.abs(jnp.exp(teacher) - jnp.exp(student)), axis=-1)
  return 0.5 * jnp.average(distance, weights=weights)


def lk(teacher, student, weights=None, eta: float = 3.0):
  """Returns KL and total variation in proportions that follow acceptance."""
  # LK losses (arXiv 2602.23881, sections 4.2 and 4.4): with the mean acceptance
  # rate a = 1 - TV, which has no gradient here, exp(-eta a) of the forward KL,
  # which learns from where nothing is accepted, and the rest of total
  # variation.
  distance = total_variation(teacher, student, weights)
  share = jnp.exp(-eta * (1 - jax.lax.stop_gradient(distance)))
  return share * forward_kl(teacher, student, weights) + (1 - share) * distance


def log_acceptance(teacher, student, weights=None):
  """Returns the mean of -log sum_x min(t, d), from logits `[B, T, V]`."""
  # The other LK loss (arXiv 2602.23881): the gradient of total variation over
  # the rate of acceptance.
  both = jnp.minimum(*_log_probs(teacher, student))
  return -jnp.average(jax.nn.logsumexp(both, axis=-1), weights=weights)


def block_verification(teacher, student, tokens, weights):
  """Returns the share of a drafted chain that is rejected as a block.

  Block verification (arXiv 2403.10444) keeps i tokens x of a chain with
  probability p_i = min(1, p_{i-1} t(x_i) / d(x_i)), so that E[sum_i p_i] tokens
  are accepted. Of texts that the teacher has written, with the likelihood ratio
  s_i = d(x_1..x_i) / t(x_1..x_i) and its minimum r_i = min(1, s_1, ..., s_i),

    E[p_i] = E_{x ~ t} sum_y min(r_{i-1} t_i(y), s_{i-1} d_i(y)),

  which has a gradient, lies in [0, 1] and needs no draft. A loss of this aim is
  that of arXiv 2609.34832, of which we know the summary alone; the estimate is
  our own derivation. Logits are `[B, L, N, V]`, of L levels of N chains a row;
  `tokens` `[B, L, N]` follow in the text; what comes after a level without
  weight does not count.
  """
  logs = _log_probs(teacher, student)
  of_text = [jnp.take_along_axis(x, tokens[..., None], axis=-1)[..., 0]
             for x in logs]
  ratio = jnp.cumsum(of_text[1] - of_text[0], axis=1)
  before = jnp.pad(ratio[:, :-1], ((0, 0), (1, 0), (0, 0)))
  # The product over no token is 1.
  least = jax.lax.cummin(before, axis=1)
  kept = jnp.exp(jnp.minimum(least[..., None] + logs[0],
                             before[..., None] + logs[1])).sum(axis=-1)
  weights = jnp.cumprod(weights, axis=1)
  count = weights.sum(axis=(0, 2))
  return 1 - jnp.mean((kept * weights).sum(axis=(0, 2)) / jnp.maximum(count, 1))


def smooth_l1(teacher, student, weights=None):
  """Returns the mean distance of features `[B, T, F]`."""
  # Girshick 2015 (arXiv 1504.08083), equation 3.
  gaps = optax.huber_loss(student.astype(jnp.float32),
                          teacher.astype(jnp.float32))
  return jnp.average(gaps.mean(axis=-1), weights=weights)


def bradley_terry(chosen, rejected):
  """Returns the mean of -log P(chosen is better), from rewards `[B]`."""
  return -jnp.mean(jax.nn.log_sigmoid(chosen - rejected))


DISTILLATION = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "total_variation": total_variation,
    "lk": lk,
    "log_acceptance": log_acceptance,
}
PATHS = {"block_verification": block_verification}


def _log_probs(*logits):
  return [jax.nn.log_softmax(x.astype(jnp.float32)) for x in logits]
