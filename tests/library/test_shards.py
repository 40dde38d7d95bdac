"""Vocabularies split over devices: no device ever has one whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.kernels import random
from decoding_jax.testing import exactness
from support import helpers, on_shards


def run(*names):
  return helpers.found_by(on_shards.__file__, *names)


@pytest.fixture(name="methods", scope="module")
def _methods():
  return run(*on_shards.METHODS)


def check(result):
  """Asserts same texts, no vocabulary, and less sent than one would be."""
  assert result["same"] and result["off"] < 1e-5
  assert result["whole"] == 0
  assert result["bytes"] < on_shards.ROWS * on_shards.MOST_BYTES


@pytest.mark.long
@pytest.mark.parametrize("shards", [2, 4, 8])
@pytest.mark.parametrize("name", on_shards.METHODS)
def test_methods_need_no_whole_vocabulary(methods, name, shards):
  check(methods[f"{name} on {shards}"])


def test_operations_are_those_of_one_device():
  assert run()["differences"] == []


@pytest.mark.long
def test_warps_and_processors_need_no_whole_vocabulary(methods):
  check(methods["processed on 4"])


@pytest.mark.long
def test_a_rule_that_sorts_gets_it_gathered(methods):
  """Control: that is seen in its program."""
  assert methods["sorting on 4"]["same"] and methods["sorting on 4"]["whole"]


@pytest.mark.long
def test_joint_distribution_on_shards(methods):
  """Control: residuals that each device normalises by its own part."""
  assert methods["p"] > exactness.MIN_P_VALUE > methods["control p"]


@pytest.mark.parametrize("size", [6, 7])
def test_noise_of_a_token_is_the_same_wherever_it_is_made(size):
  key = jax.random.key(3)
  order = np.random.default_rng(0).permutation(size).astype(np.uint32)
  np.testing.assert_array_equal(random.bits_at(key, size, jnp.asarray(order)),
                                random.bits(key, size)[order])
