"""Caches split by slots: the same texts, and no device has a whole cache."""

import pytest

from decoding_jax.testing import exactness
from support import helpers, on_split_slots

CASES = [(heads, size) for heads, sizes in on_split_slots.SIZES.items()
         for size in sizes]


def run(*names):
  return helpers.found_by(on_split_slots.__file__, *names)


@pytest.fixture(name="kernels", scope="module")
def _kernels():
  return run()


@pytest.fixture(name="texts", scope="module")
def _texts():
  return run(*on_split_slots.METHODS)


@pytest.mark.long
def test_commits_and_attentions_are_those_of_one_device(kernels):
  """Control: some caches are split by slots, over 2 to 8 devices."""
  result = kernels["kernels"].values()
  assert {x["ways"] for x in result} == {1, 2, 4, 8}
  assert all(x["same"] and x["off"] < 2e-6 for x in result), result


def test_no_device_has_a_whole_cache(kernels):
  """Control: without the split each of eight has all of it."""
  assert kernels["program"]["share"] == 1 / 8
  assert kernels["control"]["share"] == 1


def test_what_is_exchanged_does_not_grow_with_the_cache(kernels):
  """In float32: queries, their attention and its weights in two layers."""
  rows, queries = on_split_slots.ROWS, 8
  numbers = rows * queries * (2 * on_split_slots.CHANNELS + 8)
  more = kernels["program"]["bytes"] - kernels["control"]["bytes"]
  assert 0 < more <= 2 * 4 * numbers


@pytest.mark.long
@pytest.mark.parametrize("heads, size", CASES)
@pytest.mark.parametrize("name", on_split_slots.METHODS)
def test_same_texts_as_on_one_device(texts, name, heads, size):
  result = texts[f"{name} {heads} {size}"]
  assert result["same"] and result["off"] < 1e-4


@pytest.mark.long
def test_joint_distribution_of_a_split_cache(texts):
  """Control: attentions that are merged without the weight of their scores."""
  assert texts["p"] > exactness.MIN_P_VALUE
  assert texts["control p"] < helpers.MAX_P_VALUE_OF_CONTROL
