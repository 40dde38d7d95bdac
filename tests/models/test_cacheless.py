"""A function without a cache writes what the same model with one writes."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from models import cacheless, transformer
from support import tiny_models as tiny

CACHED = tiny.llama_models()
V = tiny.LLAMA.vocab_size


def plain(params, tokens):
  return transformer.causal_logits(CACHED.target.lm, params, tokens)


LM = cacheless.language_model(plain, V, tiny.LLAMA.max_length)
BOTH = tiny.Models(*(tiny.Model(LM, model.params) for model in CACHED))


def test_texts_are_those_of_the_model_with_a_cache():
  method = dj.methods.rsd_s(3, 2)
  got, wanted = (tiny.generate(method, models) for models in (BOTH, CACHED))
  np.testing.assert_array_equal(got.tokens, wanted.tokens)
  np.testing.assert_allclose(got.log_probs, wanted.log_probs, atol=1e-4)
  # Equal functions are one model.
  assert cacheless.language_model(plain, V, tiny.LLAMA.max_length) is LM


def test_a_recurrent_network_decodes_greedily():
  class Network(nn.Module):
    @nn.compact
    def __call__(self, tokens):
      x = nn.Embed(V, 8, embedding_init=nn.initializers.normal(3.0))(tokens)
      return nn.Dense(V)(nn.RNN(nn.GRUCell(8))(x))

  network = Network()
  params = network.init(jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
  model = tiny.Model(cacheless.language_model(network.apply, V), params)
  out = tiny.generate(dj.methods.rsd_c((2, 1)), tiny.Models(model, model),
                      sampling=dj.Sampling(temperature=0))
  text = jnp.asarray(tiny.PROMPTS[:1])
  for _ in range(tiny.NEW):
    token = network.apply(params, text)[:, -1].argmax(axis=-1)
    text = jnp.concatenate([text, token[:, None]], axis=1)
  np.testing.assert_array_equal(out.tokens[:1], text)
  # All drafts of a model are accepted by itself.
  assert out.stats.target_calls[0] == tiny.NEW // 3


def test_no_text_is_longer_than_the_function_allows():
  seen = []

  def short(params, tokens):
    seen.append(tokens.shape[1])
    return params[tokens]

  limit = tiny.PROMPTS.shape[1] + tiny.NEW
  model = tiny.Model(cacheless.language_model(short, V, limit),
                     jax.random.normal(jax.random.key(0), (V, V)))
  tiny.generate(dj.methods.rsd_s(3, 2), tiny.Models(model, model))
  assert max(seen) == limit


@pytest.mark.parametrize("function", [
    lambda params, tokens: jnp.zeros((*tokens.shape, V + 1)),
    lambda params, tokens: jnp.zeros((len(tokens), V)),
    lambda params, tokens: jnp.zeros((*tokens.shape, V), jnp.int32)])
def test_wrong_logits_are_told(function):
  model = tiny.Model(cacheless.language_model(function, V), ())
  with pytest.raises(ValueError, match=r"function returned logits of .*V\]="):
    tiny.generate(dj.methods.autoregressive(), tiny.Models(model, None))
