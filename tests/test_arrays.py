"""Parts of arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import arrays

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3)), jnp.float32)


@pytest.mark.parametrize("axis, indices", [
    (1, [[[3], [0]], [[4], [4]]]), (-1, [[[2]] * 5, [[0]] * 5]),
    (1, [[[1, 0, 4]], [[2, 3, 0]]])])
def test_what_numpy_takes(axis, indices):
  indices = np.array(indices)
  expected = np.take_along_axis(np.asarray(X), indices, axis=axis)
  np.testing.assert_array_equal(arrays.take(X, indices, axis), expected)


def test_nothing_is_filled_in():
  at = jax.ShapeDtypeStruct((2, 2, 1), jnp.int32)
  filled = lambda take: "nan" in str(jax.make_jaxpr(take)(X, at))
  assert not filled(lambda x, at: arrays.take(x, at, 1))
  assert filled(lambda x, at: jnp.take_along_axis(x, at, axis=1))
