"""Prompts of vectors, and a small model that reads them from a large one."""

import dataclasses

import jax
import numpy as np
import pytest

import decoding_jax as dj
from models import llm_to_slm, transformer
from support import tiny_models as tiny

_LARGE, _SMALL = tiny.OPT, tiny.GEMMA
_V = tiny.LLAMA.vocab_size


def written(model, prompts, draft=None):
  """Texts after these prompts; by trees, if there is a draft."""
  method = dj.methods.rsd_s(2, 2) if draft else dj.methods.autoregressive()
  return tiny.texts(tiny.generate(
      method, tiny.Models(tiny.Model(*model), draft and tiny.Model(*draft)),
      prompts=prompts), tiny.LENGTHS)


def of_embeddings(config, model, prompts):
  """A model that reads these prompts as vectors, its own embeddings."""
  return transformer.with_prompts(config, prompts.size), {
      **model.params, "prompts": model.params["embedding"][prompts.ravel()]}


def test_vectors_that_are_embeddings_give_the_texts_of_tokens():
  """By a tree, of both models, at temperature 1; control: other vectors."""
  target, draft = tiny.llama_models()
  config = dataclasses.replace(tiny.LLAMA, scan_layers=True)
  ids = _V + np.arange(tiny.PROMPTS.size).reshape(tiny.PROMPTS.shape)
  model, params = of_embeddings(config, target, tiny.PROMPTS)
  reader = of_embeddings(config, draft, tiny.PROMPTS)
  expected = written(target, tiny.PROMPTS, draft)
  assert written((model, params), ids, reader) == expected
  mixed = np.where(np.arange(ids.shape[1]) % 2, ids, tiny.PROMPTS)
  assert written((model, params), mixed, reader) == expected
  other = {**params, "prompts": params["prompts"][::-1]}
  assert written((model, other), ids, reader) != expected
  # Ids that no row has.
  beyond = np.full_like(tiny.PROMPTS, _V + tiny.PROMPTS.size)
  with pytest.raises(ValueError, match="with the extra_ids of all models"):
    written((model, params), beyond, reader)
  with pytest.raises(ValueError, match=f"0 to {_V - 1}, the target's"):
    written((model, params), beyond - 1, draft)


def test_a_projector_of_zeros_leaves_the_small_model():
  small = tiny.random_model(_SMALL)
  params = llm_to_slm.init(jax.random.key(0), _LARGE, small.params)
  large = tiny.random_model(_LARGE).params
  ids, own = llm_to_slm.read(_LARGE, large, params, tiny.PROMPTS)
  model = transformer.with_prompts(_SMALL, ids.size)
  assert written((model, own), ids) == written(small, tiny.PROMPTS)


def test_vectors_are_those_of_the_paper():
  """Control: those of the large model with other parameters."""
  small = tiny.random_model(_SMALL)
  params = llm_to_slm.init(jax.random.key(0), _LARGE, small.params)
  params["projector"]["out"] = jax.random.normal(
      jax.random.key(1), params["projector"]["out"].shape)
  large = tiny.random_model(_LARGE).params
  _, own = llm_to_slm.read(_LARGE, large, params, tiny.PROMPTS)
  model = transformer.with_features(_LARGE, (_LARGE.num_layers,))
  # Whole texts of one row, of which a prompt is the beginning.
  hidden = np.stack([np.concatenate([_last(model, large, row[:n])
                                     for n in range(1, len(row) + 1)])
                     for row in tiny.PROMPTS])
  first, second = (np.asarray(params["projector"][name])
                   for name in ("in", "out"))
  expected = np.asarray(small.params["embedding"])[tiny.PROMPTS] + (
      np.maximum(hidden @ first.T, 0) @ second.T)
  actual = own["prompts"].reshape(expected.shape)
  np.testing.assert_allclose(actual, expected, atol=1e-4)
  _, other = llm_to_slm.read(_LARGE, tiny.random_model(_LARGE, seed=4).params,
                             params, tiny.PROMPTS)
  assert np.abs(other["prompts"] - own["prompts"]).max() > 0.1


def _last(model, params, row):
  """Returns the hidden state `[1, F]` of the last of these tokens."""
  _, block = tiny.causal(tiny.Model(model, params), row[None])
  return np.asarray(block.features[dj.HIDDEN_STATES][0][0, -1:])
