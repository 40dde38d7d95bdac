"""Tests of models.transformer.moe."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
import numpy as np
import pytest

import decoding_jax as dj
from models.transformer import moe
from support import tiny_models as tiny

E, F, HIDDEN, N = 5, 4, 6, 3


def kernels(seed=0):
  """Gate, up and down of five experts."""
  rng = np.random.default_rng(seed)
  shapes = (E, HIDDEN, F), (E, HIDDEN, F), (E, F, HIDDEN)
  return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def test_shares_are_those_of_the_best():
  logits = jnp.log(jnp.array([[1.0, 2, 3, 4, 0.5], [6, 1, 1, 1, 1]]))
  config = dataclasses.replace(tiny.MIXTRAL, normalize_experts=False)
  result = moe.shares(logits, config)
  np.testing.assert_allclose(result[0], np.array([0, 0, 3, 4, 0]) / 10.5,
                             atol=1e-6)
  # Of experts that are worth the same, the first.
  np.testing.assert_allclose(result[1], np.array([6, 1, 0, 0, 0]) / 10,
                             atol=1e-6)
  np.testing.assert_allclose(
      moe.shares(logits, tiny.MIXTRAL)[0],
      np.array([0, 0, 3, 4, 0]) / 7, atol=1e-6)


@pytest.mark.parametrize("used", [(), (3,), (0, 4), range(E)])
def test_only_experts_in_use_are_read(used):
  """The others are no numbers, which would show in every sum."""
  x = jax.random.normal(jax.random.key(0), (N, F))
  share = np.zeros((N, E), np.float32)
  for i, expert in enumerate(used):
    share[i % N, expert] = 0.25 + i
  gate, up, down = kernels()
  expected = np.zeros((N, F))
  for i in used:
    hidden = jax.nn.silu(x @ gate[i].T) * (x @ up[i].T)
    expected += share[:, i:i + 1] * np.asarray(hidden @ down[i].T)
  unused = np.setdiff1d(np.arange(E), used)
  spoiled = [kernel.at[unused].set(jnp.nan) for kernel in (gate, up, down)]
  mix = jax.jit(lambda *arrays: moe.mix(*arrays[:2], jax.nn.silu, *arrays[2:]))
  actual = mix(jnp.asarray(share), x, *spoiled)
  np.testing.assert_allclose(actual, expected, atol=1e-5)
  if used:
    spoiled = [kernel.at[used[0]].set(jnp.nan) for kernel in (gate, up, down)]
    assert np.isnan(mix(jnp.asarray(share), x, *spoiled)).any()


@pytest.mark.parametrize("kind, devices, parts", [
    (AxisType.Manual, 1, 1), (AxisType.Manual, 3, 3), (AxisType.Manual, 4, 1),
    (AxisType.Auto, 3, 1)])
def test_sums_over_hidden_units_wait(kind, devices, parts):
  """Where devices share them, the loop carries a sum of each device."""
  mesh = AbstractMesh((2, devices), ("rows", "units"),
                      axis_types=(kind, AxisType.Auto))
  with jax.sharding.use_abstract_mesh(mesh):
    traced = jax.make_jaxpr(
        lambda *arrays: moe.mix(*arrays[:2], jax.nn.silu, *arrays[2:]))(
            jnp.ones((N, E)), jnp.ones((N, F)), *kernels())
  [loop] = [x for x in traced.eqns if x.primitive.name == "while"]
  assert loop.outvars[-1].aval.shape == (parts, N, F)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_of_a_target_with_experts(temperature):
  """Greedy texts are equal, and log-probabilities the target's own."""
  target = tiny.random_model(tiny.MIXTRAL)
  draft = tiny.noisy(target, 0.3)
  run = lambda method: dj.generate(
      jax.random.key(3), tiny.PROMPTS, tiny.LENGTHS, method=method,
      target=target.lm, target_params=target.params, draft=draft.lm,
      draft_params=draft.params, max_new_tokens=tiny.NEW,
      sampling=dj.Sampling(temperature))
  plain = run(dj.methods.autoregressive())
  tree = run(dj.methods.rsd_s(3, 3))
  if not temperature:
    np.testing.assert_array_equal(tree.tokens, plain.tokens)
  for row, start in enumerate(tiny.LENGTHS):
    end = int(tree.lengths[row])
    text = np.asarray(tree.tokens)[row:row + 1, :end]
    logits, _ = tiny.causal(target, text)
    distributions = jax.nn.log_softmax(logits[0])
    expected = [distributions[i - 1, text[0, i]] for i in range(start, end)]
    np.testing.assert_allclose(tree.log_probs[row, start:end], expected,
                               atol=1e-4)
  assert (tree.stats.target_calls < tree.stats.emitted).any()
