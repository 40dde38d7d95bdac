"""Compiled programs end: a process runs more of them than Linux lets it map."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax import kernels, programs
from decoding_jax.kernels import dispatch
from decoding_jax.testing import exactness
from support import tiny_models as tiny

SIZES = [(width, depth) for width in (1, 2, 3) for depth in (1, 2)]


@pytest.fixture(name="alone")
def fixture_alone(monkeypatch):
  """Keeps programs of this test alone."""
  monkeypatch.setattr(programs, "_kept", type(programs._kept)())
  yield
  programs.clear()


def squares():
  return programs.jit(lambda power, x: x**power, static_argnums=(0,))


def generate(width, depth):
  return tiny.generate(
      dj.methods.rsd_s(width, depth), tiny.tables(*exactness.random_tables(5)),
      prompts=np.zeros((1, 2), np.int32), lengths=np.array([2]), new=4)


@pytest.mark.long
def test_many_methods_have_bounded_mappings(alone, monkeypatch):
  generate(1, 1)  # What all methods share is compiled.
  before = programs.num_mappings()
  if not before:
    pytest.skip("nobody counts mappings here")
  generate(2, 1)
  room = max(8, programs.num_mappings() - before)
  # Room for three programs; without an end there are as many as sizes.
  most = before + 3 * room
  monkeypatch.setattr(programs, "_most_mappings",
                      lambda: most / programs._CROWDED)
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", RuntimeWarning)
    texts = [generate(*size).tokens for size in SIZES]
    assert programs.num_mappings() <= most + room
    # What was dropped is compiled again, with the same result.
    for size, text in zip(SIZES, texts):
      np.testing.assert_array_equal(generate(*size).tokens, text)


def test_the_ones_used_last_are_kept(alone, monkeypatch):
  monkeypatch.setattr(programs, "MOST", 2)
  power = squares()
  for n in (1, 2, 1, 3):
    power(n, jnp.float32(2))
  assert [key[1] for key in programs._kept] == [1, 3]
  assert power.num_programs() == 2
  assert power(2, jnp.float32(3)) == 9
  power.clear_cache()
  assert not power.num_programs()


def test_shapes_of_one_method_end_as_well(alone, monkeypatch):
  power = squares()
  for size in (1, 2, 3):
    power(2, jnp.ones(size))
  assert power.num_programs() == 3
  monkeypatch.setattr(programs, "num_mappings", lambda: 65_000)
  with pytest.warns(RuntimeWarning, match="65000 memory mappings of the"):
    power(2, jnp.ones(4))
  assert not power.num_programs()


def test_within_another_program(alone):
  power = squares()
  assert jax.jit(lambda x: power(3, x) + 1)(jnp.float32(2)) == 9
  assert not programs._kept


def test_options_that_xla_does_not_have_are_left_out(monkeypatch):
  monkeypatch.setattr(dispatch, "_CPU_OPTIONS", {"xla_no_such_option": True})
  assert not kernels.compiler_options()


def test_options_of_the_environment_go_before(monkeypatch):
  monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=true")
  assert "xla_cpu_use_fusion_emitters" not in kernels.compiler_options()
