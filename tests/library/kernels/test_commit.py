"""Tests of decoding_jax.kernels.commit: the native commit against XLA's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.kernels import buffers
from decoding_jax.kernels.cpu import bindings

B, H, C, S, N = 4, 2, 3, 9, 5


def _arrays(dtype, leading):
  """Two layers of a cache and of a block."""
  rng = np.random.default_rng(0)
  draw = lambda *shape: tuple(
      jnp.asarray(10 * rng.standard_normal((*leading, B, *shape)), dtype)
      for _ in range(2))
  return draw(H, C, S), draw(H, S, C), draw(H, C, N), draw(H, N, C)


@pytest.mark.parametrize("leading", [(), (3,)], ids=["flat", "layer axis"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8"])
def test_native_kernels_commit_as_xla_does(dtype, leading):
  keys, values, *block = _arrays(dtype, leading)
  if not bindings.supports_writes(keys):
    pytest.skip("no C++ compiler, or no CPU")
  # One row has no room for all: the write is moved back.
  slots = jnp.array([[4, 0, 2], [0, 0, 1], [1, 3, 3], [2, 1, 0]])
  arrays = (keys, values, *block, slots, jnp.array([0, 3, 2, S - 1]))
  expected = buffers._commit_reference(*arrays)
  for got, old, other in zip(jax.tree.leaves(bindings.commit(*arrays)),
                             keys + values, jax.tree.leaves(expected),
                             strict=True):
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, other)
    assert not np.array_equal(got, old)
