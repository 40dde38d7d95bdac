"""Outputs of layers that a model keeps: of committed tokens, and no others."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import verifiers
from models import transformer
from support import tiny_models as tiny

CONFIG = tiny.LLAMA
KEPT = (1, 0, CONFIG.num_layers)
METHOD = dj.methods.rsd_s(2, 2)


def models(scan):
  config = dataclasses.replace(CONFIG, scan_layers=scan)
  target = tiny.random_model(config)
  keeping = tiny.Model(transformer.with_features(config, KEPT), target.params)
  return tiny.Models(keeping, tiny.noisy(target, 0.3))


def of_texts(model, tokens):
  """Logits and features of whole texts `[B, L]`, without any cache."""
  logits, block = tiny.causal(model, tokens)
  return logits, block.features[dj.HIDDEN_STATES]


def test_features_are_outputs_of_layers():
  """A model without the later layers has the logits that follow from them."""
  model = models(False).target
  tokens = jnp.asarray(tiny.PROMPTS)
  logits, features = of_texts(model, tokens)
  np.testing.assert_allclose(
      np.asarray(features[-1]) @ np.asarray(model.params["head"]).T, logits,
      atol=1e-4)
  for layer, x in zip(KEPT[:-1], features):
    short = dataclasses.replace(CONFIG, num_layers=layer + 1)
    params = {**model.params, "layers": {
        f"layer_{i}": model.params["layers"][f"layer_{i}"]
        for i in range(layer + 1)}}
    x = np.asarray(x)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + CONFIG.norm_eps)
    x = x * np.asarray(params["norm"]["scale"]).reshape(-1)
    np.testing.assert_allclose(
        x @ np.asarray(params["head"]).T, transformer.causal_logits(
            transformer.language_model(short), params, tokens), atol=1e-4)


def spied(method, states):
  """The method, which notes texts, cached lengths and features of each step."""
  drafter, verifier = method.sampled

  def observe(context, before, after, seen):
    cache = after.target_cache
    jax.debug.callback(lambda *x: states.append(x), after.tokens, cache.length,
                       *cache.features[dj.HIDDEN_STATES])
    return drafter.observe(context, before, after, seen)

  return dj.Method("spied", verifiers.pair(
      drafter._replace(observe=observe), verifier), None)


@pytest.mark.cases(1)
@pytest.mark.parametrize("scan, rows, chunk, new", [
    (False, None, 2, 9), (True, 2, 512, 9), (False, None, 512, 45)],
                         ids=["chunks", "queue and scan", "growth"])
def test_features_of_committed_tokens(monkeypatch, scan, rows, chunk, new):
  """Those of a plain forward of the text, whatever was drafted and rejected."""
  monkeypatch.setattr("decoding_jax.runtime.prefill.CHUNK", chunk)
  monkeypatch.setattr("decoding_jax.runtime.cache_growth._ROOM", 0)
  states, both = [], models(scan)
  out = tiny.generate(spied(METHOD, states), both, rows=rows, new=new)
  jax.block_until_ready(out)
  jax.effects_barrier()
  plain = tiny.generate(METHOD, both._replace(target=tiny.Model(
      transformer.language_model(dataclasses.replace(
          CONFIG, scan_layers=scan)), both.target.params)), new=new)
  np.testing.assert_array_equal(out.tokens, plain.tokens)
  # Some drafts are rejected, and some are not.
  assert 1 < out.stats.emitted.sum() / out.stats.target_calls.sum() < 3
  if new > 9:
    assert len({actual[2].shape[1] for actual in states}) > 1
  for actual in states[::4] + states[-1:]:
    tokens, lengths, *features = map(np.asarray, actual)
    _, expected = of_texts(both.target, np.maximum(tokens, 0))
    for row in np.flatnonzero(lengths > 0):
      for x, y in zip(features, expected, strict=True):
        np.testing.assert_allclose(
            x[row, :lengths[row]], y[row, :lengths[row]],
            atol=1e-5 * np.abs(y).max(), rtol=0)


@pytest.mark.parametrize("kept", [(), (3,), (-1,)])
def test_layers_that_there_are_not(kept):
  with pytest.raises(ValueError, match="layers 0 to 1 are needed"):
    transformer.with_features(CONFIG, kept)
