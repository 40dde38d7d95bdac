"""Tests of models.transformer.linear_ops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.kernels.cpu import bindings
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


def test_columns_are_those_of_one_row_behind_another():
  x = jnp.arange(24.0).reshape(2, 3, 4)
  np.testing.assert_array_equal(
      linear_ops.columns(x), np.asarray(x).reshape(6, 4).T)


@pytest.mark.parametrize("dtype, expected", [
    ("float32", [1, 4, 4, 4, 8, 8, 16, 16, 32, 48]),
    ("bfloat16", [1, 2, 4, 4, 8, 8, 16, 16, 32, 48])])
def test_numbers_of_columns(dtype, expected):
  assert expected == [linear_ops.round_up(width, dtype) for width in
                      (1, 2, 3, 4, 5, 8, 9, 16, 17, 33)]
  x = jnp.ones((2, 3), dtype)
  padded = linear_ops.pad(x, 4)
  assert padded.dtype == dtype and padded.tolist() == [[1, 1, 1, 0]] * 2


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
  monkeypatch.setattr(bindings, "is_there", lambda: False)
  jax.clear_caches()
  yield
  jax.clear_caches()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("width", [1, 3, 8, 17])
def test_no_form_shows(dtype, width, monkeypatch, of_xla):
  monkeypatch.setattr(linear_ops, "LARGE", 1)
  kernel = jax.random.normal(jax.random.key(0), (8, 16), dtype)
  x = jax.random.normal(jax.random.key(1), (16, width), dtype)
  got = linear_ops.matmul(kernel, x)
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(
      got, np.asarray(kernel).astype(np.float64) @
      np.asarray(x).astype(np.float64),
      rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_no_form_of_attention_shows(dtype):
  """That of other devices, which a CPU can compute as well."""
  draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape, dtype)
  q = draw(0, 2, 1, 4, 3, 1)
  parts = [(draw(i, 3, 2, 4, i), draw(i + 9, 3, 2, i, 4),
            jnp.arange(i) != 1) for i in (5, 2)]
  parts = [(*kv, mask[None, None, None, None]) for *kv, mask in parts]
  expected = linear_ops._attend(0.0, q, parts)
  np.testing.assert_allclose(
      linear_ops._attend_twice(0.0, q, parts).astype(jnp.float32),
      expected.astype(jnp.float32), rtol=1e-5, atol=1e-5)
  wrong = [(keys, values, ~mask) for keys, values, mask in parts]
  assert np.abs(linear_ops._attend(0.0, q, wrong) - expected).max() > 0.1


def test_cores_are_those_that_may_be_used(monkeypatch):
  monkeypatch.setattr("os.cpu_count", lambda: 64)
  monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 5, 7},
                      raising=False)
  assert linear_ops.cores() == 3
  monkeypatch.delattr("os.sched_getaffinity")
  assert linear_ops.cores() == 64


def _temporaries(function, *arguments):
  analysis = jax.jit(function).lower(*arguments).compile().memory_analysis()
  return analysis.temp_size_in_bytes


@pytest.mark.parametrize("config, length", [
    (CONFIG, 1), (CONFIG, 4), (GEMMA, 1), (MIXTRAL, 1), (MIXTRAL, 4)])
def test_no_copies_in_float32(config, length, of_xla):
  """Of weights or caches in 16 bits, ahead of a loop or in each step."""
  kernel, x = jnp.ones((512, 128), "bfloat16"), jnp.ones((128, 4), "bfloat16")
  if _temporaries(linear_ops.matmul, kernel, x) >= 4 * kernel.size:
    pytest.skip("no products in bfloat16 on this device")
  assert _of_steps(config, length) < 2 * CONFIG.vocab_size * CONFIG.dim


@pytest.mark.parametrize("weights", ["dtype", "int8"])
@pytest.mark.parametrize("config, length", [(CONFIG, 1), (GEMMA, 4)])
def test_no_copies_by_code_of_our_own(config, length, weights):
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


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("config, length", [
    (CONFIG, 1), (CONFIG, 4), (GEMMA, 1), (MIXTRAL, 4)])
def test_no_copies_of_weights_in_8_bits(config, length, dtype, monkeypatch,
                                        of_xla):
  """But of a block of rows at a time; control: XLA would make some."""
  monkeypatch.setattr(linear_ops, "LARGE", 2**12)
  config = dataclasses.replace(config, dtype=dtype, weights="int8")
  most = 2 * CONFIG.vocab_size * CONFIG.dim
  assert _of_steps(config, length) < most
  convert = lambda values, x: linear_ops._product(
      values.astype(jnp.float32), x.astype(jnp.float32))
  monkeypatch.setattr(linear_ops, "_in_blocks", convert)
  jax.clear_caches()
  assert _of_steps(config, length) > most
