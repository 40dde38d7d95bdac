"""Forms of the references for single platforms give the same numbers."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import kernels
from decoding_jax.kernels import dot_product_attention, flash_attention, linear


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("length", [1, 3, 8, 17])
@pytest.mark.parametrize("rows", [1, 2])
def test_matmul_is_a_product_with_the_transpose(dtype, rows, length,
                                                monkeypatch):
  monkeypatch.setenv("DECODING_JAX_KERNELS", "xla")
  weights = jax.random.normal(jax.random.key(0), (8, 16), dtype)
  x = jax.random.normal(jax.random.key(1), (rows, length, 16), dtype)
  got = kernels.matmul(x, weights)
  assert got.dtype == jnp.float32
  np.testing.assert_allclose(got, np.float64(x) @ np.float64(weights).T,
                             rtol=1e-5, atol=1e-5)


@pytest.mark.cases(2)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("windowed", [False, True])
def test_attention_to_keys_that_rows_share(dtype, windowed, monkeypatch):
  rows, heads, groups, tokens, channels, shared, slots = 3, 2, 2, 4, 8, 70, 9
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(2 * rng.standard_normal(shape), dtype)
  q = draw(rows, tokens, heads, groups, channels) * channels**-0.5 / 2
  keys_values = lambda rows, n: (draw(rows, heads, channels, n),
                                 draw(rows, heads, n, channels))
  once, own = keys_values(1, shared), keys_values(rows, slots)
  own = *own, jnp.asarray(rng.random((rows, tokens, slots)) < 0.9).at[
      ..., 0].set(True)
  start, mask = None, jnp.ones((1, 1, shared), bool)
  if windowed:
    start = jnp.asarray(rng.integers(-9, shared, (rows, tokens)), jnp.int32)
    start = start.at[1].set(shared + 3)
    mask = jnp.arange(shared)[None, None] >= start[..., None]
  span = dot_product_attention.Span(jnp.full(1, shared, jnp.int32), start)
  repeated = *(jnp.repeat(x, rows, axis=0) for x in once), jnp.broadcast_to(
      mask, (rows, tokens, shared))
  expected, _ = dot_product_attention._attend(5.0, q, [repeated, own])

  def check(right=True):
    got = dot_product_attention.attention(
        q, [(*once, mask, span), own], cap=5.0 if right else 0.0)
    assert got.dtype == q.dtype
    difference = np.abs(got.astype(jnp.float32) - expected).max()
    assert difference < (1e-5 if dtype == "float32" else 5e-2) if right else (
        difference > 0.1)

  check()
  check(right=False)
  monkeypatch.setattr(flash_attention, "attend", functools.partial(
      flash_attention.attend, interpret=True))
  monkeypatch.setattr(dot_product_attention, "_SLOTS", 32)
  for form in (dot_product_attention._flash, dot_product_attention._blockwise):
    monkeypatch.setattr(
        dot_product_attention, "_attention",
        lambda q, parts, *, cap, form=form, **_: (
            dot_product_attention._attend_merged(cap, form, q, parts)))
    check()
  monkeypatch.setattr(dot_product_attention, "_attention",
                      dot_product_attention._reference)
  check()


def test_rows_that_are_added_do_not_show():
  weights = jax.random.normal(jax.random.key(0), (5, 6))
  x = jax.random.normal(jax.random.key(1), (3, 6))
  got = linear._padded(linear._dot, 8, x, weights)
  np.testing.assert_allclose(got, x @ weights.T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_query_beside_another_gives_the_same(dtype):
  draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape, dtype)
  q = draw(0, 3, 1, 2, 1, 4)
  parts = [(draw(i, 3, 2, 4, i), draw(i + 9, 3, 2, i, 4),
            (jnp.arange(i) != 1)[None, None]) for i in (5, 2)]
  expected = dot_product_attention._attend(0.0, q, parts)
  got = dot_product_attention._attend_twice(0.0, q, parts)
  wrong = dot_product_attention._attend(
      0.0, q, [(keys, values, ~mask) for keys, values, mask in parts])
  for x, y, right in zip(got, wrong, expected):
    np.testing.assert_allclose(x, right, rtol=1e-5, atol=1e-5)
    assert np.abs(y - right).max() > 0.1


@pytest.mark.cases(1)
@pytest.mark.parametrize("sizes, dtype, cap, windowed", [
    # Rows, key/value heads, groups, tokens, channels, slots.
    ((3, 2, 2, 3, 8, 300), "float32", 5.0, True),
    ((2, 4, 1, 1, 16, 96), "bfloat16", 0.0, False),
    ((1, 1, 1, 130, 8, 40), "float32", 0.0, True)])
def test_attentions_are_merged(sizes, dtype, cap, windowed, monkeypatch):
  rows, heads, groups, tokens, channels, slots = sizes
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(2 * rng.standard_normal(shape), dtype)
  q = draw(rows, tokens, heads, groups, channels) * channels**-0.5 / 2
  stop = jnp.asarray([slots // 2, 0, slots][:rows], jnp.int32)
  at, start = jnp.arange(slots)[None, None], None
  mask = at < stop[:, None, None]
  if windowed:
    start = jnp.asarray(rng.integers(-50, slots, (rows, tokens)), jnp.int32)
    mask &= at >= start[..., None]
  own = np.tril(rng.random((rows, tokens, tokens)) < 0.5) | np.eye(
      tokens, dtype=bool)
  keys_values = lambda n: (draw(rows, heads, channels, n),
                           draw(rows, heads, n, channels))
  prefix, block = keys_values(slots), (*keys_values(tokens), jnp.asarray(own))

  def check(of_prefix, span, right=True):
    parts = (*prefix, mask, span), block
    got = dot_product_attention._attend_merged(cap, of_prefix, q, parts)
    for x, y in zip(got, dot_product_attention._attend(cap, q, parts)):
      assert x.dtype == jnp.float32
      difference = np.abs(x - y).max()
      assert difference < (1e-5 if dtype == "float32" else 2e-2) if right else (
          difference > 0.1)

  monkeypatch.setattr(flash_attention, "attend", functools.partial(
      flash_attention.attend, interpret=True))
  span = dot_product_attention.Span(stop, start)
  check(dot_product_attention._flash, span)
  check(dot_product_attention._flash, span._replace(stop=stop - 9, start=None),
        right=False)
  monkeypatch.setattr(flash_attention, "_SLOTS", 128)
  monkeypatch.setattr(dot_product_attention, "_SLOTS", 32)
  check(dot_product_attention._flash, span)
  check(dot_product_attention._blockwise, span)
  # Of a stack of layers, the one that is asked for. Control: another one.
  alone, other = prefix, keys_values(slots)
  prefix = tuple(map(jnp.stack, zip(other, alone, other)))

  def check_layer(of_prefix, layer, right):
    parts = [((*x, mask, at), block) for x, at in (
        (prefix, span._replace(layer=jnp.int32(layer))), (alone, span))]
    got, expected = (dot_product_attention._attend_merged(cap, how, q, part)[0]
                     for how, part in zip((
                         of_prefix, dot_product_attention._blockwise), parts))
    difference = np.abs(np.float32(got) - np.float32(expected)).max()
    assert difference < (1e-5 if dtype == "float32" else 2e-2) if right else (
        difference > 0.1)

  for of_prefix in (dot_product_attention._flash,
                    dot_product_attention._blockwise):
    check_layer(of_prefix, 1, True)
    check_layer(of_prefix, 2, False)


def test_cores_are_those_that_may_be_used(monkeypatch):
  monkeypatch.setattr("os.cpu_count", lambda: 64)
  monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 5, 7},
                      raising=False)
  assert kernels.cores() == 3
  monkeypatch.delattr("os.sched_getaffinity")
  assert kernels.cores() == 64
