"""Random numbers: bit for bit Threefry, and right to the tails."""

import jax
from jax.extend import random as reference
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from decoding_jax.kernels import random


def test_it_is_threefry():
  key = jax.random.key_data(jax.random.key(5))
  first = jnp.arange(9, dtype=jnp.uint32) * jnp.uint32(2**31 + 7)
  second = jnp.arange(9, dtype=jnp.uint32) + jnp.uint32(2**32 - 4)
  expected = reference.threefry_2x32(key, jnp.concatenate([first, second]))
  np.testing.assert_array_equal(
      jnp.concatenate(random.threefry(key, first, second)), expected)


def test_words_are_hashes_of_numbers():
  key = jax.random.key(3)
  for size in (1, 2, 7):
    half = (size + 1) // 2
    numbers = jnp.concatenate([jnp.arange(half), jnp.zeros(half, int)])
    expected = reference.threefry_2x32(jax.random.key_data(key),
                                       numbers.astype("uint32"))
    np.testing.assert_array_equal(random.bits(key, size), expected[:size])


def test_gumbels_have_their_distribution():
  """Kolmogorov-Smirnov, 200,000 numbers of several keys."""
  draw = jax.vmap(lambda key: random.gumbel(key, 2000))
  values = np.asarray(draw(jax.random.split(jax.random.key(0), 100))).ravel()
  assert stats.kstest(values, "gumbel_r").pvalue > 1e-5
  # Neighbours, and numbers at the same place of two keys, are independent.
  for step in (1, 1000, 2000):
    pairs = np.corrcoef(values[:-step], values[step:])[0, 1]
    assert abs(pairs) < 5 / len(values)**.5
  assert stats.kstest(values * 1.01, "gumbel_r").pvalue < 1e-3


def test_small_exponentials_keep_their_digits():
  """They win; the float32 grid near 1 would be too coarse."""
  words = jnp.array([0, 1, 2, 1000, 2**31, 2**32 - 1], jnp.uint32)
  expected = -np.log1p(-(np.asarray(words, np.float64) + 0.5) / 2**32)
  actual = np.asarray(random.exponential(words))
  np.testing.assert_allclose(actual[:-1], expected[:-1], rtol=1e-6)
  # Of what is nearly 1 the last digits are lost, but it is not infinite.
  assert 16 < actual[-1] < 17
  assert -jnp.log(actual[0]) > 22


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_keys_and_uniforms_are_those_of_jax(impl):
  key = jax.random.key(7, impl=impl)
  same = lambda a, b: np.testing.assert_array_equal(
      *(jax.random.key_data(x) for x in (a, b)))
  same(random.fold_in(key, 2**31 + 5), jax.random.fold_in(key, 2**31 + 5))
  same(random.split(key), jax.random.split(key))
  same(random.split(key, 5), jax.random.split(key, 5))
  np.testing.assert_array_equal(random.uniform(key, (3, 7)),
                                jax.random.uniform(key, (3, 7)))


def test_keys_of_rows_and_noise_of_other_keys_are_those_of_jax():
  key = jax.random.key(0, impl="rbg")
  np.testing.assert_array_equal(random.gumbel(key, 5),
                                jax.random.gumbel(key, (5,)))
  keys, steps = jax.random.split(jax.random.key(1), 4), jnp.arange(4)
  actual, expected = (jax.vmap(module.fold_in)(keys, steps)
                      for module in (random, jax.random))
  np.testing.assert_array_equal(*map(jax.random.key_data, (actual, expected)))
  assert random.is_threefry(actual)
