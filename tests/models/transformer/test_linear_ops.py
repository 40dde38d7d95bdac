"""Tests of models.transformer.linear_ops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import kernels
from decoding_jax.runtime import cache as cache_lib
from models import transformer
from models.transformer import linear_ops

CONFIG = transformer.Config(
    vocab_size=512, dim=128, num_layers=2, num_heads=2, num_kv_heads=2,
    head_dim=32, hidden_dim=256, max_length=32, dtype="bfloat16")
GEMMA = dataclasses.replace(
    CONFIG, norm="rms_plus_one", feed_forward="geglu", sandwich_norm=True,
    embedding_scale=8.0, attention_softcap=50.0, logit_softcap=30.0, window=4,
    full_every=2)


MIXTRAL = dataclasses.replace(CONFIG, num_experts=8, experts_per_token=2,
                              hidden_dim=128)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_lookup_is_indexing(dtype):
  table = jax.random.normal(jax.random.key(0), (5, 3), dtype)
  index, weights = jnp.array([[4, 0], [4, 4]]), jnp.arange(12.0)
  (value, slope), (same, same_slope) = (
      (f(table, index),
       jax.grad(lambda x: (f(x, index).ravel() * weights).sum())(table))
      for f in (linear_ops.lookup, lambda x, i: x[i]))
  np.testing.assert_array_equal(value, same)
  np.testing.assert_array_equal(slope, same_slope)
  assert value.dtype == table.dtype and np.any(slope)


@pytest.fixture
def of_xla(monkeypatch):
  """XLA computes all products, as where there is no compiler for C++."""
  monkeypatch.setenv("DECODING_JAX_KERNELS", "xla")
  jax.clear_caches()
  yield
  jax.clear_caches()


def _temporaries(function, *arguments):
  analysis = jax.jit(function).lower(*arguments).compile().memory_analysis()
  return analysis.temp_size_in_bytes


@pytest.mark.cases(1)
@pytest.mark.parametrize("config, length", [
    (CONFIG, 1), (CONFIG, 4), (GEMMA, 1), (MIXTRAL, 1), (MIXTRAL, 4)])
def test_no_copies_in_float32(config, length, of_xla):
  """Of weights or caches in 16 bits, ahead of a loop or in each step."""
  kernel, x = jnp.ones((512, 128), "bfloat16"), jnp.ones((4, 128), "bfloat16")
  if _temporaries(linear_ops.matmul, x, kernel) >= 4 * kernel.size:
    pytest.skip("no products in bfloat16 on this device")
  assert _of_steps(config, length) < 2 * CONFIG.vocab_size * CONFIG.dim


@pytest.mark.skipif(not kernels.available(), reason="no native kernels")
@pytest.mark.parametrize("weights", ["dtype", "int8"])
@pytest.mark.parametrize("config, length", [(CONFIG, 1), (GEMMA, 4)])
def test_no_copies_by_native_kernels(config, length, weights):
  config = dataclasses.replace(config, weights=weights)
  assert _of_steps(config, length) < 2 * CONFIG.vocab_size * CONFIG.dim


def _of_steps(config, length):
  """Bytes that a loop of forwards needs beside its arguments."""
  lm = transformer.language_model(config)
  params = transformer.abstract_params(config)
  cache = lm.init_cache(1, 512)
  mask = jnp.ones((1, length, length), bool)

  def step(params, cache, tokens):
    logits, _ = lm.forward(params, tokens, tokens, cache,
                           cache_lib.init_block(cache, length), 0, mask)
    return jnp.argmax(logits, axis=-1).astype(jnp.int32)

  return _temporaries(
      lambda params, cache, tokens: jax.lax.fori_loop(
          0, 3, lambda _, x: step(params, cache, x), tokens),
      params, cache, jnp.ones((1, length), jnp.int32))
