"""Training losses of language models and of reward models.

A distillation loss compares the distributions of a teacher and a student at
each position of a text; every loss is a mean over positions, with weights.
"""

import jax
import jax.numpy as jnp


def cross_entropy(logits, targets, weights=None):
  """Returns the mean of -log p: logits `[B, T, V]`, targets `[B, T]`."""
  log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
  found = jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[..., 0]
  return -jnp.average(found, weights=weights)


def forward_kl(teacher, student, weights=None):
  """Returns the mean of KL(teacher || student), from logits `[B, T, V]`."""
  teacher, student = _log_probs(teacher, student)
  divergence = jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)
  return jnp.average(divergence, weights=weights)


def reverse_kl(teacher, student, weights=None):
  """Returns the mean of KL(student || teacher), from logits `[B, T, V]`."""
  return forward_kl(student, teacher, weights)


def total_variation(teacher, student, weights=None):
  """Returns the mean of half the L1 distance, the rejection rate of drafts.

  A token drawn from the student's distribution d and accepted with probability
  min(1, t / d) passes with probability sum_x min(t, d) = 1 - TV(t, d).

  Args:
    teacher: logits `[B, T, V]`.
    student: logits `[B, T, V]`.
    weights: of the mean, `[B, T]`; None for equal ones.

  Returns:
    A scalar in [0, 1].
  """
  teacher, student = _log_probs(teacher, student)
  distance = jnp.sum(jnp.abs(jnp.exp(teacher) - jnp.exp(student)), axis=-1)
  return 0.5 * jnp.average(distance, weights=weights)


def smooth_l1(teacher, student, weights=None):
  """Returns the mean distance of features `[B, T, F]`, squared where small.

  Girshick 2015 (arXiv 1504.08083), equation 3: x^2 / 2 of less than 1, else
  |x| - 1 / 2.

  Args:
    teacher: `[B, T, F]`.
    student: `[B, T, F]`.
    weights: of the mean, `[B, T]`; None for equal ones.
  """
  gap = jnp.abs(teacher.astype(jnp.float32) - student.astype(jnp.float32))
  # Two branches of a `where` would both have gradients.
  small = jnp.minimum(gap, 1)
  return jnp.average((small * (gap - small / 2)).mean(axis=-1),
                     weights=weights)


def bradley_terry(chosen, rejected):
  """Returns the mean of -log P(chosen is better), from rewards `[B]`.

  The model is that of Bradley and Terry (1952).
  """
  return -jnp.mean(jax.nn.log_sigmoid(chosen - rejected))


DISTILLATION = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "total_variation": total_variation,
}


def _log_probs(*logits):
  return [jax.nn.log_softmax(x.astype(jnp.float32)) for x in logits]
