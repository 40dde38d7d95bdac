"""Tests of decoding_jax.kernels.cpu.bindings, against XLA and numpy."""

import dataclasses
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import sampling
from decoding_jax.kernels import log_normalizer
from decoding_jax.kernels import random
from decoding_jax.kernels.cpu import bindings
from models.transformer import linear_ops
from models.transformer import norms
from support import helpers
from support import tiny_models as tiny

DTYPES = ("float32", "bfloat16", "int8")
# Types of weights and of columns: two of 16 bits have instructions of their
# own.
FORMS = (*((dtype, "float32") for dtype in DTYPES), ("bfloat16", "bfloat16"),
         ("int8", "bfloat16"))
# Of rows and inputs: less and more than a tile, and than a register.
SIZES = ((3, 5), (8, 16), (37, 100), (130, 31), (600, 48))
WIDTHS = (1, 2, 5, 6, 7, 8, 13, 64)
WIDEST = WIDTHS[-1]

pytestmark = pytest.mark.skipif(
    not bindings.is_there(), reason="no C++ compiler, or no CPU")


@pytest.fixture
def no_library(monkeypatch):
  """None has been looked for yet."""
  monkeypatch.setattr(bindings, "_library",
                      functools.cache(bindings._library.__wrapped__))


def _kernel(shape, dtype):
  values = np.random.default_rng(0).standard_normal(shape)
  if dtype == "int8":
    values = (values * 40).clip(-127, 127)
  return jnp.asarray(values, dtype)


def _x(inputs, width, dtype="float32"):
  return jnp.asarray(
      np.random.default_rng(1).standard_normal((inputs, width)), dtype)


@pytest.mark.parametrize("dtypes", FORMS)
@pytest.mark.parametrize("shape", SIZES)
def test_products(dtypes, shape):
  kernel, x = _kernel(shape, dtypes[0]), _x(shape[1], WIDEST, dtypes[1])
  expected = np.asarray(kernel, np.float64) @ np.asarray(x, np.float64)
  for width in WIDTHS:
    got = _matmul(kernel, x[:, :width])
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected[:, :width], rtol=1e-5,
                               atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("dtypes", FORMS)
@pytest.mark.parametrize("shape", SIZES)
def test_a_column_has_the_same_bits_in_any_company(dtypes, shape):
  kernel, x = _kernel(shape, dtypes[0]), _x(shape[1], WIDEST, dtypes[1])
  alone = np.concatenate([_matmul(kernel, x[:, i:i + 1])
                          for i in range(WIDEST)], axis=1)
  for width in WIDTHS:
    np.testing.assert_array_equal(_matmul(kernel, x[:, :width]),
                                  alone[:, :width])


def _matmul(kernel, x):
  return bindings.matmuls([kernel], x)[0]


def test_columns_of_zeros_behind_others_are_zeros():
  kernel, x = _kernel((9, 20), "float32"), _x(20, 3)
  got = _matmul(kernel, jnp.pad(x, ((0, 0), (0, 5))))
  np.testing.assert_array_equal(got[:, :3], _matmul(kernel, x))
  assert not np.any(got[:, 3:])
  assert not np.any(_matmul(kernel, jnp.zeros((20, 4))))
  # One in front of others is one like any other.
  assert np.all(_matmul(kernel, x.at[:, 0].set(0))[:, 1:])


def test_what_is_no_number_stays_none():
  kernel, x = _kernel((9, 20), "float32"), _x(20, 3)
  got = _matmul(kernel.at[4, 7].set(jnp.nan), x.at[2, 1].set(jnp.inf))
  assert np.isnan(got[4]).all() and not np.isfinite(got[:, 1]).any()
  assert np.isfinite(np.delete(got, 4, axis=0)[:, [0, 2]]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_slopes_of_products(dtype):
  kernel, x = _kernel((6, 5), dtype), _x(5, 3)
  kind = jnp.float32 if dtype == "int8" else dtype
  weights = jnp.arange(18.0).reshape(6, 3)

  def slopes(product):
    of_x = jax.grad(lambda x: (product(kernel, x) * weights).sum())(
        x.astype(kind))
    if dtype == "int8":
      return [of_x]
    return [of_x, jax.grad(lambda k: (product(k, x.astype(kind))
                                      * weights).sum())(kernel)]

  own = lambda k, x: linear_ops._natively((k,), (), x)[0]
  for got, expected in zip(slopes(own),
                           slopes(lambda k, x: k.astype(x.dtype) @ x)):
    np.testing.assert_allclose(got.astype(jnp.float32),
                               expected.astype(jnp.float32), rtol=2e-2)
    assert np.any(got)


@pytest.mark.parametrize("dtypes", FORMS)
def test_products_that_are_asked_for_together_have_the_same_bits(dtypes):
  kernels = [_kernel(shape, dtypes[0]) for shape in ((37, 100), (2, 100),
                                                     (600, 100))]
  x = _x(100, WIDEST, dtypes[1])
  for width in WIDTHS:
    for got, kernel in zip(bindings.matmuls(kernels, x[:, :width]), kernels):
      np.testing.assert_array_equal(got, _matmul(kernel, x[:, :width]))


@pytest.mark.parametrize("dtypes", FORMS)
def test_products_of_more_columns_than_stay_near_a_core(dtypes):
  # Rows of 16 kB, of which 32 stay; or of 8 kB.
  kernel, x = _kernel((11, 4096), dtypes[0]), _x(4096, 75, dtypes[1])
  got = _matmul(kernel, x)
  for column in (0, 31, 32, 63, 64, 74):
    np.testing.assert_array_equal(
        got[:, column:column + 1], _matmul(kernel, x[:, column:column + 1]))


def test_products_with_scales():
  kernels = [_kernel((37, 100), "int8"), _kernel((2, 100), "int8")]
  scales = [jnp.arange(37.0)[:, None], jnp.full((2, 1), 0.5)]
  x = jnp.pad(_x(100, 7), ((0, 0), (0, 2)))
  for got, plain, scale in zip(bindings.matmuls(kernels, x, scales),
                               bindings.matmuls(kernels, x), scales):
    np.testing.assert_array_equal(got, plain * scale)


def test_columns_of_other_types():
  # Whole numbers, whose sums are exact in any order.
  kernel, x = _kernel((9, 20), "int8"), (9 * _x(20, 3)).round()
  for dtype in ("bfloat16", "float16"):
    np.testing.assert_array_equal(
        _matmul(kernel, x.astype(dtype)),
        _matmul(kernel, x.astype(dtype).astype(jnp.float32)))


def test_products_of_stacked_kernels():
  kernels, x = _kernel((4, 6, 5), "float32"), _x(5, 3)
  np.testing.assert_allclose(jax.vmap(linear_ops.matmul, (0, None))(kernels, x),
                             kernels @ x,
                             rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("shape", [(5, 3), (16, 1), (100, 2), (4, 33, 7),
                                   (3000, 40)])
def test_norms(dtype, plus_one, shape):
  x = jnp.asarray(3 * np.random.default_rng(0).standard_normal(shape), dtype)
  scale = jnp.linspace(0.5, 2.0, shape[-2], dtype=dtype)[:, None]
  got = norms.rms(x, scale, 1e-5, plus_one)
  expected = norms._plain(1e-5, plus_one, x, scale)
  assert got.dtype == dtype and got.shape == shape
  # In 16 bits a number may be rounded to its other neighbour.
  tolerance = 2e-6 if dtype == "float32" else 1 / 64
  got, expected = (np.float32(y) for y in (got, expected))
  np.testing.assert_allclose(got, expected, rtol=tolerance)
  assert (got != expected).mean() < (1 if dtype == "float32" else 1e-2)
  other = np.float32(norms._plain(1e-5, not plus_one, x, scale))
  assert np.abs(other - expected).max() > 0.1


def test_norms_of_a_column_have_the_same_bits_in_any_company():
  x, scale = _x(100, 33), jnp.linspace(0.5, 2.0, 100)
  alone = [bindings.rms_norm(x[:, i:i + 1], scale, 1e-5, False)
           for i in range(33)]
  np.testing.assert_array_equal(bindings.rms_norm(x, scale, 1e-5, False),
                                jnp.concatenate(alone, axis=1))


def test_norms_of_what_is_no_number_or_large():
  x = _x(20, 4).at[3, 1].set(jnp.nan).at[:, 2].multiply(1e15)
  got = bindings.rms_norm(x.astype("bfloat16"), jnp.ones(20, "bfloat16"), 1e-5,
                          False).astype(jnp.float32)
  assert np.isnan(got[:, 1]).all()
  assert np.isfinite(np.delete(got, 1, axis=1)).all()
  np.testing.assert_allclose((got[:, 2]**2).mean(), 1, rtol=1e-2)


def test_slopes_of_norms():
  x, scale = _x(6, 3), jnp.linspace(0.5, 2.0, 6)[:, None]
  slopes = [jax.grad(lambda x, scale: (f(1e-5, True, x, scale)**3).sum(),
                     (0, 1))(x, scale)
            for f in (norms._natively, norms._plain)]
  for got, expected in zip(*slopes):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(), (1,), (3, 7), (40,)])
def test_hashes(shape):
  """Those that the compiler computes, of a key each."""
  keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4))
  numbers = np.random.default_rng(0).integers(0, 2**32, shape, np.uint32)
  of = lambda function: jax.vmap(lambda key: function(key, numbers))(keys)
  np.testing.assert_array_equal(of(bindings.hashes), of(random._hashed))


@pytest.mark.parametrize("count", [1, 7, 40])
def test_hashes_of_the_first_numbers(count):
  keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4))
  got, expected = (jax.vmap(function)(keys) for function in (
      functools.partial(bindings.first_hashes, count),
      lambda key: random._hashed(key, jnp.arange(count, dtype=jnp.uint32))))
  np.testing.assert_array_equal(got, expected)


# Heads, groups, channels, rows, tokens, slots of the cache and of the block.
ATTENTIONS = ((2, 3, 20, 2, 5, 130, 9), (1, 1, 64, 1, 1, 512, 1),
              (4, 1, 64, 3, 8, 70, 8), (1, 2, 8, 2, 3, 3, 3),
              (2, 2, 130, 1, 6, 64, 33), (3, 2, 32, 4, 1, 70, 1))


def _attention(sizes, dtype, windowed=False):
  """Queries and two stretches, some slots of which are seen."""
  heads, groups, channels, rows, tokens, slots, fresh = sizes
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(2 * rng.standard_normal(shape), dtype)
  prefix = np.arange(slots) < rng.integers(0, slots, (rows, 1, 1, 1, 1))
  if windowed:
    prefix = rng.random((rows, 1, 1, tokens, slots)) < 0.1
  block = rng.random((rows, 1, 1, tokens, fresh)) < 0.5
  block[..., 0] = True
  # Scores of about 2, as those of a model.
  q = draw(heads, groups, channels, rows, tokens) / (2 * channels**0.5)
  return q.astype(dtype), [
      (draw(rows, heads, channels, slots), draw(rows, heads, slots, channels),
       jnp.asarray(prefix)),
      (draw(rows, heads, channels, fresh), draw(rows, heads, fresh, channels),
       jnp.asarray(block))]


def _wide(q, parts):
  return q.astype(jnp.float32), [
      (keys.astype(jnp.float32), values.astype(jnp.float32), mask)
      for keys, values, mask in parts]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cap", [0.0, 5.0])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("sizes", ATTENTIONS)
def test_attention(dtype, cap, windowed, sizes):
  q, parts = _attention(sizes, dtype, windowed)
  expected = linear_ops._attend(cap, *_wide(q, parts))
  tolerance = 1e-4 if dtype == "float32" else 2e-2
  got = bindings.attention(q, parts, cap)
  assert got.dtype == q.dtype
  np.testing.assert_allclose(got.astype(jnp.float32), expected, rtol=tolerance,
                             atol=tolerance)
  wrong = [(*parts[0][:2], jnp.ones_like(parts[0][2])), parts[1]]
  assert np.abs(bindings.attention(q, wrong, cap) - expected).max() > 0.1


def test_attention_of_many_queries_to_those_before():
  """Each tile reads what its own queries see."""
  q, parts = _attention((2, 1, 16, 1, 200, 3, 200), "float32")
  keys, values, _ = parts[1]
  causal = jnp.tril(jnp.ones((200, 200), bool))[None, None, None]
  parts[1] = keys, values, causal
  got = bindings.attention(q, parts)
  np.testing.assert_allclose(got, linear_ops._attend(0.0, q, parts), rtol=1e-4,
                             atol=1e-4)
  # As if there were no more than the first ones.
  few = [parts[0], (keys[..., :9], values[:, :, :9], causal[..., :9, :9])]
  np.testing.assert_array_equal(bindings.attention(q[..., :9], few),
                                got[..., :9])


def test_attention_to_one_stretch():
  q, parts = _attention(ATTENTIONS[2], "float32")
  np.testing.assert_allclose(
      bindings.attention(q, parts[1:]), linear_ops._attend(0.0, q, parts[1:]),
      rtol=1e-4, atol=1e-4)


def test_large_scores_have_the_weight_of_one_token():
  q, parts = _attention((1, 1, 8, 1, 2, 3, 70), "float32")
  got = bindings.attention(100 * q, parts)
  np.testing.assert_allclose(got, linear_ops._attend(0.0, 100 * q, parts),
                             rtol=1e-4, atol=1e-4)


def test_slots_behind_a_text_are_not_read():
  q, parts = _attention((2, 1, 16, 1, 3, 512, 3), "float32")
  keys, values, _ = parts[0]
  seen = (jnp.arange(512) < 60)[None, None, None, None]
  expected = bindings.attention(q, [(keys, values, seen), parts[1]])
  keys, values = (x.at[index].set(jnp.nan) for x, index in (
      (keys, np.s_[..., 64:]), (values, np.s_[:, :, 64:])))
  np.testing.assert_array_equal(
      bindings.attention(q, [(keys, values, seen), parts[1]]), expected)
  seen = seen.at[..., 99].set(True)
  assert np.isnan(bindings.attention(
      q, [(keys, values, seen), parts[1]])).any()


# Less than a register, one of 16 lanes and one more, and a vocabulary.
VOCABULARIES = (5, 16, 17, 1000, 32001)


@pytest.mark.parametrize("size", VOCABULARIES)
@pytest.mark.parametrize("divisor", [1.0, 0.3])
def test_normalizers(size, divisor):
  x = 5 * np.random.default_rng(0).standard_normal((2, 3, size), np.float32)
  x[1, 1, 1:] = -np.inf
  largest, log_mass = bindings.normalizer(jnp.asarray(x), jnp.float32(divisor))
  np.testing.assert_array_equal(largest, x.max(axis=-1))
  exact = np.float64(x) - x.max(axis=-1, keepdims=True)
  exact = np.log(np.exp(exact / divisor).sum(axis=-1))
  np.testing.assert_allclose(log_mass, exact, rtol=1e-6, atol=1e-6)
  assert not log_mass[1, 1]


def test_normalizers_of_rows_with_their_own_divisors():
  x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 3, 40)),
                  jnp.float32)
  divisors = jnp.array([1.0, 2.0, 0.5, 0.1])
  found = jax.vmap(bindings.normalizer)(x, divisors)
  for got, expected in zip(found, jax.vmap(log_normalizer._sums)(x, divisors)):
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_slopes_of_normalizers():
  x = jnp.linspace(-2.0, 3.0, 20)
  of = lambda f: jax.grad(lambda x: f(x, jnp.float32(0.7))[1])(x)
  np.testing.assert_allclose(of(log_normalizer._natively),
                             of(log_normalizer._sums),
                             rtol=1e-5,
                             atol=1e-7)


@pytest.mark.parametrize("size", VOCABULARIES)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_draws_are_those_of_xla(size, k):
  """The same random words; the sums differ by roundings alone."""
  rng = np.random.default_rng(0)
  distributions = jax.nn.log_softmax(jnp.asarray(rng.standard_normal((6, size)),
                                                 jnp.float32))
  keys = jax.random.split(jax.random.key(1), 6)
  draw = lambda function: jax.vmap(lambda key, probs: function(key, probs, k))(
      keys, distributions)
  got, expected = draw(sampling.gumbel_top_k), draw(sampling._gumbel_top_k)
  np.testing.assert_array_equal(got[1], expected[1])
  np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=2e-6)
  # Control: of other keys they are others.
  other = jax.vmap(lambda key, probs: sampling.gumbel_top_k(key, probs, k))(
      keys[::-1], distributions)
  assert np.any(other[1] != got[1])


def test_all_gumbels():
  """In the whole range, with as many digits as those of XLA."""
  key, size = jax.random.key(3), 200_000
  gumbels = np.float64(random.gumbel(key, size))
  values, tokens = bindings.gumbel_top_k(
      jax.random.key_data(key), jnp.zeros(size), size // 100)
  np.testing.assert_array_equal(tokens, np.argsort(-gumbels, kind="stable")[
      :size // 100])
  np.testing.assert_allclose(values, gumbels[np.asarray(tokens)], rtol=5e-7)
  least = bindings.gumbel_top_k(
      jax.random.key_data(key), jnp.zeros(999), 999)[0][-1]
  assert least == pytest.approx(
      float(random.gumbel(key, 999).min()), abs=1e-6)


def test_draws_of_what_has_no_mass():
  probs = jnp.where(jnp.isin(jnp.arange(100), jnp.array([7, 60])), 0.0,
                    -jnp.inf)
  values, tokens = bindings.gumbel_top_k(
      jax.random.key_data(jax.random.key(0)), probs, 4)
  assert set(np.asarray(tokens[:2])) == {7, 60}
  # Then the first ones, as in XLA.
  assert tokens[2:].tolist() == [0, 1]
  assert np.isfinite(values).tolist() == [True, True, False, False]
  _, tokens = bindings.gumbel_top_k(jax.random.key_data(jax.random.key(0)),
                                    jnp.full(40, jnp.nan), 2)
  assert tokens.tolist() == [0, 0]


def test_slopes_of_attention():
  q, parts = _attention(ATTENTIONS[3], "float32")
  slopes = [jax.grad(lambda q: (f(0.0, q, parts)**2).sum())(q)
            for f in (linear_ops._attend_natively, linear_ops._attend)]
  np.testing.assert_allclose(*slopes, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "config", [tiny.LLAMA, tiny.OPT, tiny.GEMMA, tiny.NEOX, tiny.MIXTRAL],
    ids=["llama", "opt", "gemma", "neox", "mixtral"])
def test_models_compute_what_they_do_without(config, dtype, monkeypatch):
  model = tiny.random_model(dataclasses.replace(config, dtype=dtype))
  tokens = jnp.arange(14).reshape(2, 7) % 11
  got, _ = tiny.causal(model, tokens)
  monkeypatch.setattr(bindings, "is_there", lambda: False)
  jax.clear_caches()
  expected, _ = tiny.causal(model, tokens)
  jax.clear_caches()
  scale = np.std(expected)
  if dtype == "float32":
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4 * scale)
  else:  # The median: some tokens choose other experts.
    assert np.median(np.abs(got - expected)) < 0.03 * scale


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_xla_computes(compiler, no_library, monkeypatch,
                                         tmp_path):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.setenv("CXX", compiler)
  kernel, x = _kernel((9, 20), "float32"), _x(20, 3)
  assert not bindings.multiplies([kernel])
  np.testing.assert_allclose(linear_ops.matmul(kernel, x),
                             kernel @ x,
                             rtol=1e-5,
                             atol=1e-5)
  assert not list(tmp_path.rglob("*.so"))


def test_it_can_be_turned_off(no_library, monkeypatch):
  monkeypatch.setenv(bindings.SWITCH, "0")
  assert not bindings.is_there()


@pytest.fixture(name="fast")
def _fast(monkeypatch, tmp_path):
  """Libraries are kept in a folder of the test, which is returned, and empty.

  What compiles them writes its arguments, each time something else.
  """
  script = tmp_path / "compiler"
  script.write_text(
      "#!/bin/sh\n"
      f"if [ $1 = --version ]; then cat {tmp_path}/version; exit; fi\n"
      f"echo >> {tmp_path}/runs\n"
      "while [ $# -gt 1 ]; do shift; done\n"
      f"cat {tmp_path}/runs > $1\n")
  script.chmod(0o700)
  (tmp_path / "version").write_text("1.0")
  (tmp_path / "runs").touch()
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.setenv("CXX", str(script))
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
  (tmp_path / "temporary").mkdir()
  return tmp_path / "cache" / "decoding_jax"


def _build():
  """The path of the library, made or found."""
  with bindings._folder() as folder:
    return bindings._compiled(bindings._compiler(), folder)


def _runs(fast):
  return len((fast.parents[1] / "runs").read_text())


def test_it_is_compiled_once(fast):
  library = _build()
  assert list(fast.iterdir()) == [library]
  assert _build() == library and _runs(fast) == 1


@pytest.mark.parametrize("content", [b"", b"\n\n\n\nforeign", None])
def test_a_damaged_library_is_made_anew(fast, content):
  """One that was cut off, to nothing at all, and one of something else."""
  library = _build()
  library.write_bytes(library.read_bytes()[:-1] if content is None else content)
  whole = _build()
  assert list(fast.iterdir()) == [whole] and _runs(fast) == 2
  assert whole.stem.endswith(hashlib.sha256(whole.read_bytes()).hexdigest())


def test_a_library_that_is_cut_off_kills_nobody(monkeypatch, tmp_path):
  """The real one, in a process of its own, which it would end by SIGBUS."""
  with bindings._folder() as folder:
    [library] = [path for path in folder.glob("*.so") if path.stem == (
        f"{bindings._library()}-{bindings._contents(path)}")]
  cache = tmp_path / "decoding_jax"
  cache.mkdir(mode=0o700)
  damaged = cache / library.name
  damaged.write_bytes(library.read_bytes()[:-5000])
  # What would make it anew makes the same.
  code = (
      "import pathlib\n"
      "from decoding_jax.kernels.cpu import bindings\n"
      "make = bindings.subprocess.run\n"
      "def run(command, **kwargs):\n"
      "  if '-o' not in command: return make(command, **kwargs)\n"
      f"  whole = pathlib.Path({str(library)!r}).read_bytes()\n"
      "  pathlib.Path(command[-1]).write_bytes(whole)\n"
      "bindings.subprocess.run = run\n"
      "print(bindings.is_there())\n")
  process = helpers.start("-c", code, XDG_CACHE_HOME=str(tmp_path))
  output, errors = process.communicate(timeout=60)
  assert process.returncode == 0, errors
  assert output == "True\n"
  assert damaged.read_bytes() == library.read_bytes()


def test_what_no_system_can_load_is_one_line(fast, no_library, caplog):
  assert not bindings.is_there()
  assert "cannot be loaded" in caplog.messages[-1]
  assert len(caplog.messages[-1].splitlines()) == 1
  assert len(list(fast.iterdir())) == 1


@pytest.mark.parametrize("reason", ["open", "others"])
def test_a_folder_of_others_is_not_used(fast, monkeypatch, caplog, reason):
  fast.mkdir(parents=True)
  if reason == "open":
    fast.chmod(0o775)
  else:
    monkeypatch.setattr(os, "getuid", lambda: fast.stat().st_uid + 1)
  with bindings._folder() as folder:
    library = bindings._compiled(bindings._compiler(), folder)
    assert library.parent.parent == fast.parents[1] / "temporary"
  assert "each program will compile anew" in caplog.messages[0]
  assert not library.parent.exists() and not list(fast.iterdir())


def test_a_new_folder_is_private(fast):
  before = os.umask(0)
  try:
    _build()
  finally:
    os.umask(before)
  assert fast.stat().st_mode & 0o777 == 0o700


def test_what_killed_builds_leave_is_removed(fast):
  others, old, new = (fast / name for name in (
      "mine", f"{bindings._BUILD}old", f"{bindings._BUILD}new"))
  for folder in (others, old, new):
    folder.mkdir(mode=0o700, parents=True)
    (folder / "made.so").touch()
  for folder in (others, old):
    os.utime(folder, (0, 0))
  library = _build()
  assert {*fast.iterdir()} == {others, new, library}


@pytest.mark.parametrize("compiler", ["'c++", 'c++ -DX="', "c++ \\"])
def test_a_malformed_compiler_is_one_line(compiler, fast, no_library,
                                          monkeypatch, caplog):
  monkeypatch.setenv("CXX", compiler)
  assert not bindings.is_there()
  assert "CXX=" in caplog.text and "is no command" in caplog.text
  assert len(caplog.messages) == len(caplog.messages[0].splitlines()) == 1
  assert not fast.exists()


def test_an_empty_compiler_is_that_of_the_system(monkeypatch):
  monkeypatch.setenv("CXX", " ")
  assert bindings._compiler() == ["c++"]


def test_libraries_depend_on_contents(fast, monkeypatch, tmp_path):
  """On what is in sources, wherever they are, and on what compiles them."""
  digest = lambda: bindings._digest(bindings._compiler())
  before = digest()
  copy = tmp_path / "checkout"
  shutil.copytree(bindings._SOURCES, copy)
  monkeypatch.setattr(bindings, "_SOURCES", copy)
  assert digest() == before
  (fast.parents[1] / "version").write_text("1.1")
  newer = digest()
  monkeypatch.setattr(bindings, "_FLAGS", ("-O0", *bindings._FLAGS[1:]))
  slower = digest()
  with open(copy / "thread_team.h", "a") as f:
    f.write("\n")
  changed = digest()
  monkeypatch.setattr(bindings, "_cpu", lambda: "another one")
  assert len({before, newer, slower, changed, digest()}) == 5


def test_the_compiler_warns_of_nothing(tmp_path):
  """With few optimisations, which takes less time."""
  command = bindings._command(bindings._compiler())
  made = subprocess.run(
      [*command, "-O1", "-o", str(tmp_path / "made.so")], check=True,
      capture_output=True, text=True)
  assert not made.stderr


def test_what_there_is_no_code_for():
  assert bindings.multiplies([jnp.ones((3, 4))])
  assert bindings.multiplies([jnp.ones((3, 4), jnp.bfloat16)])
  assert not bindings.multiplies([jnp.ones((3, 4), jnp.float16)])
  assert not bindings.multiplies([jnp.ones((0, 4))])
  assert not bindings.multiplies(
      [jnp.ones((3, 4)), jnp.ones((3, 4), jnp.bfloat16)])
  assert bindings.reads(jnp.ones((3, 4), jnp.bfloat16))
  assert not bindings.reads(jnp.ones((3, 4), jnp.float16))
