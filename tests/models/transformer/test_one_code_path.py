"""The layers that a researcher edits are the ones that compute."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.runtime import cache as cache_lib
from models import transformer
from models.transformer import layers
from support import tiny_models as tiny

TOKENS = np.arange(12, dtype=np.int32).reshape(2, 6) % 11
PREFIX = np.array([3, 5], np.int32)


@dataclasses.dataclass(frozen=True)
class Config(transformer.Config):
  """A field that the published architectures do not have."""
  attention_factor: float = 1.0


class Attention(layers.Attention):
  """Attention times that field, and times a parameter of each channel."""

  @nn.compact
  def __call__(self, x, prefix, block, slot, view):
    y, block = super().__call__(x, prefix, block, slot, view)
    gain = self.param("gain", nn.initializers.ones, (x.shape[-1],))
    return y * self.config.attention_factor * gain[None, None], block


def _logits(config, params):
  """Logits of a step of decoding, after a prefix in a cache."""
  model = tiny.Model(transformer.language_model(config), params)
  cache = tiny.committed(model, TOKENS, PREFIX, 12)
  return tiny.forward(
      *model, TOKENS[:, :1], PREFIX[:, None], cache,
      cache_lib.init_block(cache, 1), 0, jnp.ones((2, 1, 1), bool))[0]


def _with_gain(params, gain):
  """Parameters with one more in each layer."""
  size = tiny.LLAMA.dim
  return {**params, "layers": {
      name: {**layer, "attention": {
          **layer["attention"], "gain": jnp.full(size, gain, jnp.float32)}}
      for name, layer in params["layers"].items()}}


@pytest.mark.cases(1)
@pytest.mark.parametrize("kernels", ["native", "xla"])
def test_a_new_field_and_a_new_parameter_take_effect(kernels, monkeypatch):
  monkeypatch.setenv("DECODING_JAX_KERNELS", kernels)
  jax.clear_caches()
  params = tiny.random_model(tiny.LLAMA).params
  expected = _logits(tiny.LLAMA, params)
  monkeypatch.setattr(layers, "Attention", Attention)
  config = Config(**dataclasses.asdict(tiny.LLAMA))
  same = _logits(config, _with_gain(params, 1.0))
  np.testing.assert_allclose(same, expected, atol=1e-5)
  of_field = _logits(dataclasses.replace(config, attention_factor=0.5),
                     _with_gain(params, 1.0))
  of_parameter = _logits(config, _with_gain(params, 0.5))
  assert np.abs(of_field - expected).max() > 1e-2
  np.testing.assert_allclose(of_parameter, of_field, atol=1e-5)
  jax.clear_caches()


def test_init_has_the_new_parameter(monkeypatch):
  monkeypatch.setattr(layers, "Attention", Attention)
  config = Config(**dataclasses.asdict(tiny.LLAMA))
  params = transformer.abstract_params(config)
  assert params["layers"]["layer_0"]["attention"]["gain"].shape == (
      tiny.LLAMA.dim,)
