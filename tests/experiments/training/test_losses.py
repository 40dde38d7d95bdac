"""Distillation losses against float64 sums over small distributions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.training import losses
from models import transformer
from support import tiny_models as tiny


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
  """Half of the square up to 1, and then as steep as there."""
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


def test_causal_logits_do_not_look_ahead():
  config = transformer.Config(
      vocab_size=7, dim=8, num_layers=1, num_heads=2, num_kv_heads=1,
      head_dim=4, hidden_dim=8, max_length=8)
  lm = transformer.language_model(config)
  params = tiny.init(jax.random.key(0), config)
  tokens = jnp.array([[1, 2, 3, 4, 5], [1, 2, 3, 0, 6]])
  logits = jax.jit(transformer.causal_logits, static_argnums=0)(
      lm, params, tokens)
  assert logits.shape == (2, 5, 7)
  np.testing.assert_allclose(logits[0, :3], logits[1, :3], atol=1e-6)
  assert np.abs(logits[0, 3] - logits[1, 3]).max() > 1e-4
