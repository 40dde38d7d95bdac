"""Contrastive search against plain forwards of whole texts."""

import dataclasses

import jax
import numpy as np
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import mesh, mesh_shapes, model_pair
from models import transformer
from support import tiny_models as tiny


GREEDY = dj.Sampling(temperature=0)
K, ALPHA = 3, 0.6


def models(config=tiny.LLAMA):
  """A target that keeps states after its final norm, and others before them."""
  target = tiny.random_model(dataclasses.replace(config, scan_layers=False))
  lm = transformer.with_features(config, (0, config.num_layers))
  return tiny.Models(tiny.Model(lm, target.params), target)


def run(method, result, rows=slice(None), **kwargs):
  return tiny.generate(method, result, prompts=tiny.PROMPTS[rows],
                       lengths=tiny.LENGTHS[rows], sampling=GREEDY, **kwargs)


def forward(model, text):
  """Logits and hidden states of a text, without a cache."""
  tokens = np.zeros((1, tiny.PROMPTS.shape[1] + tiny.NEW + 1), np.int32)
  tokens[0, :len(text)] = text
  logits, block = tiny.causal(model, tokens)
  return (np.asarray(logits, np.float64)[0, len(text) - 1],
          np.asarray(block.features[dj.HIDDEN_STATES][-1],
                     np.float64)[0, :len(text)])


def reference(model, prompt, alpha, k=K, eos=None):
  text = list(prompt)
  while len(text) < len(prompt) + tiny.NEW and (
      len(text) == len(prompt) or text[-1] != eos):
    logits, _ = forward(model, text)
    probs = np.exp(logits - logits.max())
    probs /= probs.sum()
    scores = []
    for token in np.argsort(-probs, kind="stable")[:k]:
      _, states = forward(model, text + [int(token)])
      states /= np.linalg.norm(states, axis=1, keepdims=True)
      scores.append(((1 - alpha) * probs[token] -
                     alpha * (states[:-1] @ states[-1]).max(), int(token)))
    text.append(max(scores)[1])
  return text[len(prompt):]


def references(result, alpha, **kwargs):
  return [reference(result.target, prompt[:length].tolist(), alpha, **kwargs)
          for prompt, length in zip(tiny.PROMPTS, tiny.LENGTHS)]


@pytest.mark.parametrize("config", [
    tiny.LLAMA, dataclasses.replace(tiny.OPT, max_length=64)],
                         ids=["llama", "opt"])
def test_equals_plain_forwards(config):
  actual, method = models(config), dj.methods.contrastive_search(K, ALPHA)
  out = run(method, actual)
  expected = references(actual, ALPHA)
  assert tiny.texts(out, tiny.LENGTHS) == expected
  np.testing.assert_array_equal(out.stats.target_calls, 1 + tiny.NEW)
  # Controls: another weight, and none, which is greedy.
  greedy = tiny.greedy(actual.target, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  assert expected != references(actual, 0.2) and expected != greedy
  if config is tiny.LLAMA:
    out = run(dj.methods.contrastive_search(K, 0.0), actual)
    assert tiny.texts(out, tiny.LENGTHS) == greedy


def test_a_row_alone_and_in_a_queue_and_an_end():
  result, method = models(), dj.methods.contrastive_search(K, ALPHA)
  eos = references(result, ALPHA)[0][3]
  out = run(method, result, eos_id=eos)
  expected = references(result, ALPHA, eos=eos)
  assert tiny.texts(out, tiny.LENGTHS) == expected
  alone = run(method, result, slice(1, 2), eos_id=eos)
  assert tiny.texts(alone, tiny.LENGTHS[1:2]) == expected[1:2]
  queued = tiny.generate(method, result, sampling=GREEDY, eos_id=eos, rows=2)
  assert tiny.texts(queued, tiny.LENGTHS) == expected


def test_a_target_without_features_is_refused():
  got = models()
  with pytest.raises(ValueError, match="target keeps no features"):
    run(dj.methods.contrastive_search(K), tiny.Models(got.draft, got.draft))


def test_experiments_keep_features_for_methods_that_read_them(folders):
  pair = model_pair.open_pair(folders[0], "")
  method = dj.methods.contrastive_search(2)
  kept = model_pair.with_features(pair, [method])
  model_pair.check(method, kept, 4, 4, GREEDY)
  on_mesh = mesh.with_params(kept, mesh_shapes.make((1, 1)))
  with jax.set_mesh(on_mesh.mesh):
    model_pair.check(method, on_mesh, 4, 4, GREEDY)
  assert model_pair.with_features(
      pair, [dj.methods.autoregressive()]) is pair
  # Control: the pair as it is opened for other methods.
  with pytest.raises(launch.UserError, match="target keeps no features"):
    model_pair.check(method, pair, 4, 4, GREEDY)
