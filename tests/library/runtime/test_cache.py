"""Commits write after the prefix of each row and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import kernels, types
from decoding_jax.runtime import cache as cache_lib

B, H, C, S, N = 4, 2, 3, 9, 5
LENGTHS = np.array([0, 3, 2, 6], np.int32)


def random_cache(leading=(), layers=2):
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(
      rng.standard_normal((*leading, B, *shape)), jnp.float32)
  copies = range(layers)
  cache = types.Cache(tuple(draw(H, C, S) for _ in copies),
                      tuple(draw(H, S, C) for _ in copies),
                      jnp.asarray(LENGTHS))
  block = types.Block(tuple(draw(H, C, N) for _ in copies),
                      tuple(draw(H, N, C) for _ in copies))
  return cache, block


def slots_first(cache):
  """Keys and values as `[..., B, S, H, C]` arrays, one list."""
  keys = [np.moveaxis(np.asarray(x), (-1, -3), (-3, -2)) for x in cache.keys]
  values = [np.moveaxis(np.asarray(x), -2, -3) for x in cache.values]
  return keys + values


@pytest.mark.parametrize("counts", [(2, 3, 0, 1), (0,) * B], ids=str)
@pytest.mark.parametrize("leading", [(), (3,)], ids=["flat", "layer axis"])
def test_commit_copies_slots_behind_the_prefix(leading, counts):
  cache, block = random_cache(leading)
  slots = np.array([[4, 0, 2], [0, 0, 1], [1, 3, 3], [2, 1, 0]], np.int32)
  counts = np.array(counts, np.int32)
  after = cache_lib.commit(cache, block, jnp.asarray(slots),
                           jnp.asarray(counts))
  np.testing.assert_array_equal(after.length, LENGTHS + counts)
  for old, fresh, new in zip(slots_first(cache), slots_first(block),
                             slots_first(after)):
    assert old.shape == new.shape == (*leading, B, S, H, C)
    for row, (length, count) in enumerate(zip(LENGTHS, counts)):
      prefix = (..., row, slice(length), slice(None), slice(None))
      np.testing.assert_array_equal(new[prefix], old[prefix])
      for i in range(count):
        np.testing.assert_array_equal(new[..., row, length + i, :, :],
                                      fresh[..., row, slots[row, i], :, :])


@pytest.mark.parametrize("leading", [(), (3,)], ids=["flat", "layer axis"])
def test_rows_that_are_put_replace_whole_rows(leading):
  cache, _ = random_cache(leading)
  part = lambda x, axis: jnp.flip(jnp.take(x, jnp.arange(3), axis), axis) + 1
  other = types.Cache(tuple(part(x, -4) for x in cache.keys),
                      tuple(part(x, -4) for x in cache.values),
                      part(cache.length, 0))
  # The second of them lies outside.
  after = cache_lib.put_rows(cache, jnp.array([3, B, 0]), other)
  expected = [*LENGTHS]
  expected[3], expected[0] = LENGTHS[2] + 1, LENGTHS[0] + 1
  np.testing.assert_array_equal(after.length, expected)
  for old, new in zip(slots_first(cache), slots_first(after)):
    rows = lambda x, i: x[..., i, :, :, :]
    np.testing.assert_array_equal(rows(new, 3), rows(old, 2) + 1)
    np.testing.assert_array_equal(rows(new, 0), rows(old, 0) + 1)
    np.testing.assert_array_equal(rows(new, [1, 2]), rows(old, [1, 2]))


def test_features_are_committed_by_name_in_their_own_shapes():
  """Of no axis, one and two after the slots; and rows of them are put."""
  cache, block = random_cache()
  rng = np.random.default_rng(1)
  draw = lambda size: {
      "hidden": (rng.normal(size=(B, size, 3)).astype(np.float32),),
      "state": {"waits": rng.random((B, size)) < 0.5,
                "last": rng.integers(0, 9, (B, size, 2, 2)).astype(np.int32)}}
  old, fresh = draw(S), draw(N)
  cache, block = cache.replace(features=old), block.replace(features=fresh)
  empty = cache_lib.init_block(cache, N).features
  assert jax.tree.map(lambda x: (x.shape, x.dtype), empty) == jax.tree.map(
      lambda x: (x.shape, x.dtype), fresh)
  slots = np.array([[4, 0, 2], [0, 0, 1], [1, 3, 3], [2, 1, 0]], np.int32)
  after = jax.jit(cache_lib.commit)(cache, block, slots, np.full(B, 3))
  put = jax.jit(cache_lib.put_rows)(cache, jnp.array([2, B]), jax.tree.map(
      lambda x: x[:2], after))

  def check(old, fresh, new, put):
    expected = old.copy()
    for row, length in enumerate(LENGTHS):
      expected[row, length:length + 3] = fresh[row, slots[row]]
    np.testing.assert_array_equal(new, expected)
    replaced = old.copy()
    replaced[2] = expected[0]
    np.testing.assert_array_equal(put, replaced)

  jax.tree.map(check, old, fresh, after.features, put.features)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_commit_copies_no_cache(dtype):
  if dtype == "bfloat16" and not kernels.available():
    pytest.skip("XLA converts what has 16 bits on a CPU")
  size = 256
  array = jnp.zeros((B, H, size, size), dtype)
  block = types.Block(*[(jnp.ones((B, H, *shape), dtype),) * 2
                        for shape in ((size, 3), (3, size))],
                      {"own": jnp.ones((B, 3, H, size))})
  cache = types.Cache((array, array + 1), (array, array + 1),
                      jnp.zeros(B, jnp.int32),
                      {"own": jnp.zeros((B, size, H, size))})

  def steps(cache):
    return jax.lax.fori_loop(0, 5, lambda _, cache: cache_lib.commit(
        cache, block, jnp.zeros((B, 2), jnp.int32), jnp.ones(B, jnp.int32)),
                             cache)

  result = jax.jit(steps, donate_argnums=0).lower(
      cache).compile().memory_analysis()
  assert result.alias_size_in_bytes >= 5 * array.nbytes
  assert result.temp_size_in_bytes < array.nbytes / 2


def test_several_caches_at_once():
  cache, block = random_cache()
  slots, count = jnp.zeros((B, 2), jnp.int32), jnp.ones(B, jnp.int32)
  both = jax.tree.map(lambda x: jnp.stack([x, x + 1]), (cache, block))
  result = jax.vmap(lambda cache, block: cache_lib.commit(
      cache, block, slots, count))(*both)
  for i in range(2):
    one = cache_lib.commit(*jax.tree.map(lambda x: x[i], both), slots, count)
    jax.tree.map(np.testing.assert_array_equal, one,
                 jax.tree.map(lambda x: x[i], result))


def test_commits_follow_each_other():
  """A later commit overwrites what the one before did not count."""
  cache, block = random_cache()
  cache = cache.replace(length=jnp.zeros(B, jnp.int32))
  first = jnp.broadcast_to(jnp.array([0, 1, 2]), (B, 3))
  second = jnp.broadcast_to(jnp.array([4, 3]), (B, 2))
  cache = cache_lib.commit(cache, block, first, jnp.array([0, 1, 2, 3]))
  cache = cache_lib.commit(cache, block, second, jnp.array([2, 2, 1, 2]))
  expected = [[4, 3], [0, 4, 3], [0, 1, 4], [0, 1, 2, 4, 3]]
  np.testing.assert_array_equal(cache.length, [len(x) for x in expected])
  for fresh, new in zip(slots_first(block), slots_first(cache)):
    for row, slots in enumerate(expected):
      np.testing.assert_array_equal(new[row, :len(slots)], fresh[row, slots])


def test_a_commit_may_fill_the_cache():
  cache, block = random_cache()
  cache = cache.replace(length=jnp.full(B, S - 2))
  slots = jnp.broadcast_to(jnp.array([3, 1]), (B, 2))
  after = cache_lib.commit(cache, block, slots, jnp.full(B, 2))
  np.testing.assert_array_equal(after.length, [S] * B)
  for old, fresh, new in zip(slots_first(cache), slots_first(block),
                             slots_first(after)):
    np.testing.assert_array_equal(new[:, :-2], old[:, :-2])
    np.testing.assert_array_equal(new[:, -2:], fresh[:, [3, 1]])


@pytest.mark.parametrize("leading", [(), (3,)], ids=["flat", "layer axis"])
def test_an_empty_block_has_the_shapes_and_the_type_of_the_cache(leading):
  cache, _ = random_cache(leading)
  block = cache_lib.init_block(cache, 7)
  assert [x.shape for x in block.keys] == [(*leading, B, H, C, 7)] * 2
  assert [x.shape for x in block.values] == [(*leading, B, H, 7, C)] * 2
  assert not any(np.asarray(x).any() for x in block.keys + block.values)
  half = jnp.zeros((1, 1, 2, 3), jnp.bfloat16)
  cache = types.Cache((half,), (half,), jnp.zeros(1, jnp.int32))
  assert cache_lib.init_block(cache, 1).keys[0].dtype == jnp.bfloat16


def test_a_model_that_keeps_nothing_and_capacities():
  cache = types.Cache((), (), jnp.asarray(LENGTHS))
  block = cache_lib.init_block(cache, 4)
  assert block == types.Block((), ())
  after = cache_lib.commit(cache, block, jnp.zeros((B, 1), jnp.int32),
                           jnp.ones(B, jnp.int32))
  np.testing.assert_array_equal(after.length, LENGTHS + 1)
  assert cache_lib.capacity(cache) is None
  assert cache_lib.capacity(random_cache()[0]) == S
  assert cache_lib.capacity(random_cache((3,))[0]) == S
  assert cache_lib.capacity(random_cache()[0].replace(keys=())) == S
