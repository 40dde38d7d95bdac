"""Buffers, with native kernels and without."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax.kernels import buffers
from decoding_jax.kernels.cpu import bindings

X = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 3)), jnp.float32)


@pytest.mark.parametrize("axis, indices", [
    (1, [[[3], [0]], [[4], [4]]]), (-1, [[[2]] * 5, [[0]] * 5]),
    (1, [[[1, 0, 4]], [[2, 3, 0]]])])
def test_what_numpy_takes(axis, indices):
  indices = np.array(indices)
  expected = np.take_along_axis(np.asarray(X), indices, axis=axis)
  np.testing.assert_array_equal(buffers.take_along(X, indices, axis), expected)


def test_nothing_is_filled_in():
  at = jax.ShapeDtypeStruct((2, 2, 1), jnp.int32)
  filled = lambda take: "nan" in str(jax.make_jaxpr(take)(X, at))
  assert not filled(lambda x, at: buffers.take_along(x, at, 1))
  assert filled(lambda x, at: jnp.take_along_axis(x, at, axis=1))


@pytest.fixture(params=["native", "compiler"])
def form(request, monkeypatch):
  """What computes it."""
  if request.param == "compiler":
    monkeypatch.setenv(bindings.SWITCH, "xla")
  elif not bindings.available():
    pytest.skip("no C++ compiler, or no CPU")
  return request.param


def _called(name, function, *arguments):
  # Of the function itself JAX may know a program.
  program = jax.make_jaxpr(lambda *x: function(*x))(*arguments)
  return f"decoding_jax_{name}_" in str(program)


def test_zeros(form):
  like = (jax.ShapeDtypeStruct((2, 3), jnp.bfloat16),
          jax.ShapeDtypeStruct((5,), jnp.bool_))
  make = lambda x: buffers.zeros(like, x)
  assert _called("room", make, X) == (form == "native")
  for got, expected in zip(make(X), like):
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    assert not np.any(got)


def test_room_is_made_in_each_turn_of_a_loop(form):
  """One that is ahead of it would be copied; what is written is there."""
  del form
  like = (jax.ShapeDtypeStruct((4, 3), jnp.float32),)

  def turn(i, total):
    room, = buffers.empty_like(like, total)
    written, = buffers.write_slots((room,), (jnp.full((4, 3), i, jnp.float32),),
                                   0)
    return total + written.sum()

  assert jax.jit(lambda: jax.lax.fori_loop(0, 5, turn, 0.0))() == 120


@pytest.mark.parametrize("start", [0, 2, 3])
def test_put(form, start):
  large = jnp.arange(2 * 6 * 7.0).reshape(2, 6, 7)
  targets = (large, jnp.zeros((2, 6), jnp.int32), jnp.ones((2, 6, 1), bool))
  sources = (-large[:, 1:4], jnp.full((2, 3), 8), jnp.zeros((2, 3, 1), bool))
  assert _called("put", buffers.write_slots, targets, sources,
                 1) == (form == "native")
  for x, y, got in zip(targets, sources,
                       buffers.write_slots(targets, sources, start)):
    expected = np.array(x)
    expected[:, start:start + 3] = y
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, expected)


def test_put_of_more_than_a_core_takes(form):
  del form
  target = jnp.zeros((1, 5, 2**16))
  source = jnp.arange(3.0 * 2**16).reshape(1, 3, -1)
  got, = buffers.write_slots((target,), (source,), 2)
  np.testing.assert_array_equal(got, jnp.pad(source, ((0, 0), (2, 0), (0, 0))))
