"""Distillation losses against float64 sums over small distributions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.speculation.verifiers import traversal
from decoding_jax.testing import enumeration
from experiments.training import losses


def _distributions(logits):
  weights = np.exp(np.asarray(logits, np.float64))
  return weights / weights.sum(axis=-1, keepdims=True)


@pytest.fixture(name="logits")
def _logits():
  rng = np.random.default_rng(0)
  return rng.normal(size=(2, 3, 4, 5)).astype(np.float32) * 2


def test_cross_entropy(logits):
  targets = np.arange(12).reshape(3, 4) % 5
  distributions = _distributions(logits[0])
  expected = -np.mean([np.log(distributions[i, j, targets[i, j]])
                       for i in range(3) for j in range(4)])
  np.testing.assert_allclose(losses.cross_entropy(logits[0], targets), expected,
                             rtol=1e-6)


@pytest.mark.parametrize("name, expected", [
    ("forward_kl", lambda t, d: (t * np.log(t / d)).sum(-1).mean()),
    ("reverse_kl", lambda t, d: (d * np.log(d / t)).sum(-1).mean()),
    ("total_variation", lambda t, d: 1 - np.minimum(t, d).sum(-1).mean()),
    ("log_acceptance", lambda t, d: -np.log(np.minimum(t, d).sum(-1)).mean()),
])
def test_distillation(logits, name, expected):
  loss = losses.DISTILLATION[name]
  np.testing.assert_allclose(loss(*logits),
                             expected(*_distributions(logits)),
                             rtol=1e-5)
  np.testing.assert_allclose(loss(logits[0], logits[0] + 3), 0, atol=1e-6)


@pytest.mark.parametrize("name", sorted(losses.DISTILLATION))
def test_places_without_weight_do_not_count(logits, name):
  weights = np.zeros((3, 4), np.float32)
  weights[1, :2] = 1
  loss = losses.DISTILLATION[name]
  np.testing.assert_allclose(loss(*logits, weights),
                             loss(*logits[:, 1:2, :2]), rtol=1e-6)
  targets = np.ones((3, 4), np.int32)
  np.testing.assert_allclose(
      losses.cross_entropy(logits[0], targets, weights),
      losses.cross_entropy(logits[0, 1:2, :2], targets[1:2, :2]), rtol=1e-6)


def test_smooth_l1():
  gaps = np.array([[0, .5, 1, -3]])
  weights = np.array([[1, 3]])
  both = np.stack([gaps, 2 * gaps], axis=1)
  expected = [(.125 + .5 + 2.5) / 4, (.5 + 1.5 + 5.5) / 4]
  np.testing.assert_allclose(
      losses.smooth_l1(np.ones((1, 2, 4)), 1 + both, weights),
      np.average(expected, weights=weights[0]), rtol=1e-6)
  slope = jax.grad(lambda x: losses.smooth_l1(np.zeros((1, 1, 4)), x))(
      gaps[None].astype(np.float32))
  np.testing.assert_allclose(slope[0], np.array([[0, .5, 1, -1]]) / 4)


def test_bradley_terry():
  chosen, rejected = np.array([1.0, -2.0, 90.0]), np.array([0.5, 1.0, -90.0])
  expected = -np.mean(np.log(1 / (1 + np.exp(rejected - chosen))))
  np.testing.assert_allclose(losses.bradley_terry(chosen, rejected), expected,
                             rtol=1e-6)


@pytest.mark.parametrize("name", sorted(losses.DISTILLATION))
def test_gradients_are_finite(name):
  teacher = jnp.array([[[80.0, -80.0, 0.0]]])
  student = jnp.array([[[-80.0, 80.0, 0.0]]])
  gradient = jax.grad(losses.DISTILLATION[name], argnums=1)(teacher, student)
  assert np.isfinite(gradient).all()


def test_lk(logits):
  """Both losses in its proportions, which are constants to its gradient."""
  distance, divergence = (jax.value_and_grad(loss, argnums=1)(*logits)
                          for loss in (losses.total_variation,
                                       losses.forward_kl))
  result = jax.value_and_grad(losses.lk, argnums=1)(*logits)
  share = np.exp(-3 * (1 - distance[0]))
  assert .05 < share < .95
  for a, b, c in zip(result, divergence, distance):
    np.testing.assert_allclose(a, share * b + (1 - share) * c, rtol=1e-5,
                               atol=1e-7)


_LEVELS, _TOKENS = 3, 3


def _chains():
  """All chains of three tokens after token 0, logits along each, and tables."""
  tables = 1.5 * np.random.default_rng(0).normal(size=(2, _TOKENS, _TOKENS))
  paths = np.array(list(itertools.product(range(_TOKENS), repeat=_LEVELS)))
  before = np.pad(paths, ((0, 0), (1, 0)))[:, :-1]
  return paths, *tables[:, before], _distributions(tables)


def _along(distributions, path):
  return distributions[np.arange(_LEVELS), path].prod()


def test_block_verification():
  """What it accepts of the draft's chains, from the target's texts.

  That of tokens one by one differs by more than a hundred times the tolerance.
  """
  paths, teacher, student, tables = _chains()
  target, draft = _distributions(np.stack([teacher, student]))
  expected = enumeration.joint_distribution(
      traversal.of_chain, enumeration.fixed_trees(
          tables[1], ((1,),) * _LEVELS), tables[0])[1] - 1
  of_target = np.array([_along(t, path) for t, path in zip(target, paths)])
  one_by_one = sum(
      _along(d, path) * np.cumprod(np.minimum(
          1, t[np.arange(_LEVELS), path] / d[np.arange(_LEVELS), path])).sum()
      for t, d, path in zip(target, draft, paths))

  def loss(logits):
    return losses.block_verification(
        np.moveaxis(teacher, 0, 1)[None], jnp.moveaxis(logits, 0, 1)[None],
        paths.T[None], jnp.ones((1, _LEVELS, len(paths))))

  each = [losses.block_verification(
      t[None, :, None], d[None, :, None], path[None, :, None],
      np.ones((1, _LEVELS, 1))) for t, d, path in zip(teacher, student, paths)]
  accepted = _LEVELS * (1 - np.dot(of_target, each))
  np.testing.assert_allclose(accepted, expected, rtol=1e-5)
  assert expected - one_by_one > 1e-3 * expected
  slope = jax.grad(loss)(student.astype(np.float32))
  rng, gap = np.random.default_rng(2), 1e-2
  for way in rng.normal(size=(3, *student.shape)).astype(np.float32):
    np.testing.assert_allclose(
        np.vdot(slope, way),
        (loss(student + gap * way) - loss(student - gap * way)) / 2 / gap,
        rtol=2e-2, atol=2e-4)


def test_block_verification_stops_where_a_text_ends():
  """Levels after one without weight count nothing, whatever their own is."""
  paths, teacher, student, _ = _chains()
  chains = [np.moveaxis(x, 0, 1)[None] for x in (teacher, student)]
  weights = np.ones((1, _LEVELS, len(paths)))
  weights[:, 1, 5:] = 0
  cut = weights.copy()
  cut[:, 2, 5:] = 0
  actual, expected = (losses.block_verification(*chains, paths.T[None], w)
                      for w in (weights, cut))
  np.testing.assert_allclose(actual, expected, rtol=1e-6)
  assert abs(actual - losses.block_verification(
      *chains, paths.T[None], np.ones_like(weights))) > 1e-3
