"""Forms of the references for single platforms give the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import kernels
from decoding_jax.kernels import dot_product_attention
from decoding_jax.kernels import linear


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


def test_rows_that_are_added_do_not_show():
  weights = jax.random.normal(jax.random.key(0), (5, 6))
  x = jax.random.normal(jax.random.key(1), (3, 6))
  np.testing.assert_allclose(linear._padded(8, x, weights), x @ weights.T,
                             rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_query_beside_another_gives_the_same(dtype):
  draw = lambda i, *shape: jax.random.normal(jax.random.key(i), shape, dtype)
  q = draw(0, 3, 1, 2, 1, 4)
  parts = [(draw(i, 3, 2, 4, i), draw(i + 9, 3, 2, i, 4),
            (jnp.arange(i) != 1)[None, None]) for i in (5, 2)]
  expected = dot_product_attention._attend(0.0, q, parts)
  np.testing.assert_allclose(
      dot_product_attention._attend_twice(0.0, q, parts).astype(jnp.float32),
      expected.astype(jnp.float32), rtol=1e-5, atol=1e-5)
  wrong = [(keys, values, ~mask) for keys, values, mask in parts]
  assert np.abs(dot_product_attention._attend(0.0, q, wrong)
                - expected).max() > 0.1


def test_cores_are_those_that_may_be_used(monkeypatch):
  monkeypatch.setattr("os.cpu_count", lambda: 64)
  monkeypatch.setattr("os.sched_getaffinity", lambda _: {2, 5, 7},
                      raising=False)
  assert kernels.cores() == 3
  monkeypatch.delattr("os.sched_getaffinity")
  assert kernels.cores() == 64
