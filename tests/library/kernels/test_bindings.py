"""Native kernels against XLA and numpy."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import kernels as seam
import decoding_jax as dj
from decoding_jax.kernels import dot_product_attention, gumbel, norms, random
from decoding_jax.kernels.cpu import bindings, build
from models import transformer
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
    not bindings.available(), reason="no C++ compiler, or no CPU")


@pytest.fixture
def no_library(monkeypatch):
  """None has been looked for yet."""
  monkeypatch.setattr(bindings, "_found", {})


def _kernel(shape, dtype):
  values = np.random.default_rng(0).standard_normal(shape)
  if dtype == "int8":
    values = (values * 40).clip(-127, 127)
  return jnp.asarray(values, dtype)


def _x(inputs, width, dtype="float32"):
  return jnp.asarray(
      np.random.default_rng(1).standard_normal((width, inputs)), dtype)


@pytest.mark.cases(10)
@pytest.mark.parametrize("dtypes", FORMS)
@pytest.mark.parametrize("shape", SIZES)
def test_products(dtypes, shape):
  """A token has the same bits in any company."""
  kernel, x = _kernel(shape, dtypes[0]), _x(shape[1], WIDEST, dtypes[1])
  expected = np.asarray(x, np.float64) @ np.asarray(kernel, np.float64).T
  alone = np.concatenate([_matmul(kernel, x[i:i + 1]) for i in range(WIDEST)])
  for width in WIDTHS:
    got = _matmul(kernel, x[:width])
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, expected[:width], rtol=1e-5,
                               atol=1e-5 * np.abs(expected).max())
    np.testing.assert_array_equal(got, alone[:width])


def _matmul(kernel, x):
  return bindings.matmuls(x, [kernel])[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bits, size, scales, has_least", [
    (4, 32, "float16", True), (4, 32, "float32", True),
    (8, 32, "float16", False), (8, 16, "float32", False),
    (8, 32, "float16", True)])
def test_products_in_groups(dtype, bits, size, scales, has_least):
  """They are those of the same weights in the activations' type, to the bit."""
  shape, rng = (70, 288), np.random.default_rng(0)
  values = jnp.asarray(rng.integers(0, 256, (70, 144), np.uint8) if bits == 4
                       else rng.integers(-128, 128, shape, np.int8))
  # As of blocks, products with scales are exact; some have few digits.
  of_groups = lambda: jnp.asarray(
      rng.standard_normal((70, 288 // size)) * 10.0 ** rng.integers(
          -7, 0, (70, 1)), jnp.float16).astype(scales)
  scale, least = of_groups(), of_groups() if has_least else None
  whole = seam.dequantized(values, scale, least, jnp.dtype(dtype))
  for width in WIDTHS:
    x = _x(288, width, dtype)
    args = x, [values], [scale], [least] if has_least else []
    assert bindings.supports_matmul(*args)
    np.testing.assert_array_equal(bindings.matmuls(*args)[0],
                                  _matmul(whole, x))
  # The reference is what other platforms compute.
  expected = np.float64(x) @ np.float64(whole).T
  got = seam.matmuls(x, *args[1:3], least=args[3])[0]
  np.testing.assert_allclose(got, expected, rtol=1e-4,
                             atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("value", [jnp.inf, -jnp.inf, jnp.nan])
def test_what_is_no_number_by_whole_numbers(value):
  kernel, x = _kernel((40, 70), "int8"), _x(70, 3, "bfloat16")
  got = _matmul(kernel, x.at[1, 2].set(value).at[2].set(0))
  assert not np.isfinite(got[1]).any()
  np.testing.assert_array_equal(got[0], _matmul(kernel, x)[0])
  np.testing.assert_array_equal(got[2], 0)


def test_what_is_no_number_stays_none():
  kernel, x = _kernel((9, 20), "float32"), _x(20, 3)
  got = _matmul(kernel.at[4, 7].set(jnp.nan), x.at[1, 2].set(jnp.inf))
  assert np.isnan(got[:, 4]).all() and not np.isfinite(got[1]).any()
  assert np.isfinite(np.delete(got, 4, axis=1)[[0, 2]]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_derivatives_of_products(dtype):
  kernel, x = _kernel((6, 5), dtype), _x(5, 3)
  kind = jnp.float32 if dtype == "int8" else dtype
  weights = jnp.arange(18.0).reshape(3, 6)

  def slopes(product):
    of_x = jax.grad(lambda x: (product(kernel, x) * weights).sum())(
        x.astype(kind))
    if dtype == "int8":
      return [of_x]
    return [of_x, jax.grad(lambda k: (product(k, x.astype(kind))
                                      * weights).sum())(kernel)]

  for got, expected in zip(slopes(lambda k, x: seam.matmul(x, k)),
                           slopes(lambda k, x: x @ k.astype(x.dtype).T)):
    np.testing.assert_allclose(got.astype(jnp.float32),
                               expected.astype(jnp.float32), rtol=2e-2)
    assert np.any(got)


@pytest.mark.parametrize("dtypes", FORMS)
def test_products_together_and_of_many_tokens_have_the_same_bits(dtypes):
  kernels = [_kernel(shape, dtypes[0]) for shape in ((37, 100), (2, 100),
                                                     (600, 100))]
  x = _x(100, WIDEST, dtypes[1])
  for width in WIDTHS:
    for got, kernel in zip(bindings.matmuls(x[:width], kernels), kernels):
      np.testing.assert_array_equal(got, _matmul(kernel, x[:width]))
  # More than stay near a core: rows of 16 kB, of which 32 stay; or of 8 kB.
  kernel, x = _kernel((11, 4096), dtypes[0]), _x(4096, 75, dtypes[1])
  got = _matmul(kernel, x)
  for token in (0, 31, 32, 63, 64, 74):
    np.testing.assert_array_equal(
        got[token:token + 1], _matmul(kernel, x[token:token + 1]))


def test_products_with_scales_and_of_stacked_kernels():
  kernels = [_kernel((37, 100), "int8"), _kernel((2, 100), "int8")]
  scales = [jnp.arange(37.0)[:, None], jnp.full((2, 1), 0.5)]
  x = _x(100, 7)
  for got, plain, scale in zip(bindings.matmuls(x, kernels, scales),
                               bindings.matmuls(x, kernels), scales):
    np.testing.assert_array_equal(got, plain * scale.T)
  for got, wide in zip(bindings.matmuls(x, kernels, scales, dtype="bfloat16"),
                       bindings.matmuls(x, kernels, scales)):
    np.testing.assert_array_equal(got, wide.astype("bfloat16"))
  stacked, x = _kernel((4, 6, 5), "float32"), _x(5, 3)
  np.testing.assert_allclose(jax.vmap(seam.matmul, (None, 0))(x, stacked),
                             x @ stacked.mT, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [3, 64, 20_011])
def test_functions_of_activations(dtype, size):
  """Far from zero as well, where an exponential would overflow."""
  x, y = (jnp.asarray(_x(size, 2)[i] * scale, dtype)
          for i, scale in enumerate((40, 1)))
  x = x.at[:3].set(jnp.asarray([300, -300, 0], dtype))
  np.testing.assert_array_equal(seam.add(x, y), x + y)
  wide = x.astype(jnp.float32)
  np.testing.assert_allclose(
      seam.swiglu(x, y).astype(jnp.float32),
      jax.nn.silu(wide) * y.astype(jnp.float32),
      rtol=1e-5 if dtype == "float32" else 2**-8, atol=1e-30)
  slope = jax.grad(lambda x: seam.swiglu(x, y).astype(jnp.float32).sum())(x)
  right = jax.grad(lambda x: (jax.nn.silu(x) * y).astype(
      jnp.float32).sum())(x)
  np.testing.assert_array_equal(slope, right)


def test_tokens_of_other_types():
  # Whole numbers, whose sums are exact in any order.
  kernel, x = _kernel((9, 20), "int8"), (9 * _x(20, 3)).round()
  for dtype in ("bfloat16", "float16"):
    np.testing.assert_array_equal(
        _matmul(kernel, x.astype(dtype)),
        _matmul(kernel, x.astype(dtype).astype(jnp.float32)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("plus_one", [False, True])
@pytest.mark.parametrize("shape", [(3, 5), (1, 16), (2, 100), (7, 4, 33),
                                   (40, 3000)])
def test_norms(dtype, plus_one, shape):
  x = jnp.asarray(3 * np.random.default_rng(0).standard_normal(shape), dtype)
  scale = jnp.linspace(0.5, 2.0, shape[-1], dtype=dtype)
  kind = {"epsilon": 1e-5, "plus_one": plus_one}
  got = bindings.rms_norm(x, scale, **kind)
  expected = norms._rms_reference(x, scale, **kind)
  assert got.dtype == dtype and got.shape == shape
  # In 16 bits a number may be rounded to its other neighbour.
  tolerance = 2e-6 if dtype == "float32" else 1 / 64
  got, expected = (np.float32(y) for y in (got, expected))
  np.testing.assert_allclose(got, expected, rtol=tolerance)
  assert (got != expected).mean() < (1 if dtype == "float32" else 1e-2)
  other = np.float32(norms._rms_reference(x, scale, epsilon=1e-5,
                                          plus_one=not plus_one))
  assert np.abs(other - expected).max() > 0.1


def test_norms_of_a_token_have_the_same_bits_in_any_company():
  x, scale = _x(100, 33), jnp.linspace(0.5, 2.0, 100)
  norm = functools.partial(bindings.rms_norm, epsilon=1e-5, plus_one=False)
  np.testing.assert_array_equal(norm(x, scale), jnp.concatenate(
      [norm(x[i:i + 1], scale) for i in range(33)]))


def test_norms_of_what_is_no_number_or_large():
  x = _x(20, 4).at[1, 3].set(jnp.nan).at[2].multiply(1e15)
  got = bindings.rms_norm(x.astype("bfloat16"), jnp.ones(20, "bfloat16"),
                          epsilon=1e-5, plus_one=False).astype(jnp.float32)
  assert np.isnan(got[1]).all()
  assert np.isfinite(np.delete(got, 1, axis=0)).all()
  np.testing.assert_allclose((got[2]**2).mean(), 1, rtol=1e-2)


def test_derivatives():
  x, scale = _x(6, 3), jnp.linspace(0.5, 2.0, 6)
  slopes = [jax.grad(lambda x, scale: (
      f(x, scale, epsilon=1e-5, plus_one=True)**3).sum(), (0, 1))(x, scale)
            for f in (seam.rms_norm, norms._rms_reference)]
  for got, expected in zip(*slopes):
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)
  q, parts = _attention(ATTENTIONS[3], "float32")
  slopes = [jax.grad(lambda q: (f(q, parts)**2).sum())(q)
            for f in (seam.attention, _expected)]
  np.testing.assert_allclose(*slopes, rtol=1e-3, atol=1e-3)
  x = jnp.linspace(-2.0, 3.0, 20)
  slopes = [jax.grad(lambda x: f(x, jnp.float32(0.7))[1].sum())(x)
            for f in (seam.log_normalizer, norms._softmax_reference)]
  np.testing.assert_allclose(*slopes, rtol=1e-5, atol=1e-7)


def test_hashes():
  """Those that the compiler computes, of a key each; and of first numbers."""
  keys = jax.random.key_data(jax.random.split(jax.random.key(0), 4))
  of = lambda function, *numbers: jax.vmap(
      lambda key: function(key, *numbers))(keys)
  for shape in ((), (1,), (3, 7), (40,)):
    numbers = np.random.default_rng(0).integers(0, 2**32, shape, np.uint32)
    np.testing.assert_array_equal(of(bindings.threefry_hashes, numbers),
                                  of(random._reference, numbers))
  for count in (1, 7, 40):
    first = functools.partial(bindings.first_threefry_hashes, count=count)
    np.testing.assert_array_equal(
        of(first), of(random._reference, jnp.arange(count, dtype=jnp.uint32)))


# Heads, groups, channels, rows, tokens, slots of the cache and of the block.
ATTENTIONS = ((2, 3, 20, 2, 5, 130, 9), (1, 1, 64, 1, 1, 512, 1),
              (4, 1, 64, 3, 8, 70, 8), (1, 2, 8, 2, 3, 3, 3),
              (2, 2, 130, 1, 6, 64, 33), (3, 2, 32, 4, 1, 70, 1))


def _attention(sizes, dtype, windowed=False):
  """Queries and two stretches, some slots of which are seen."""
  heads, groups, channels, rows, tokens, slots, fresh = sizes
  rng = np.random.default_rng(0)
  draw = lambda *shape: jnp.asarray(2 * rng.standard_normal(shape), dtype)
  prefix = np.arange(slots) < rng.integers(0, slots, (rows, 1, 1))
  if windowed:
    prefix = rng.random((rows, tokens, slots)) < 0.1
  block = rng.random((rows, tokens, fresh)) < 0.5
  block[..., 0] = True
  # Scores of about 2, as those of a model.
  q = draw(rows, tokens, heads, groups, channels) / (2 * channels**0.5)
  return q.astype(dtype), [
      (draw(rows, heads, channels, slots), draw(rows, heads, slots, channels),
       jnp.asarray(prefix)),
      (draw(rows, heads, channels, fresh), draw(rows, heads, fresh, channels),
       jnp.asarray(block))]


def _attend(q, parts):
  return bindings.attention(q, parts, cap=0.0)[0]


def _expected(q, parts):
  return dot_product_attention._attend(0.0, q, parts)[0]


def _wide(q, parts):
  return q.astype(jnp.float32), [
      (keys.astype(jnp.float32), values.astype(jnp.float32), mask)
      for keys, values, mask in parts]


@pytest.mark.cases(16)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("cap", [0.0, 5.0])
@pytest.mark.parametrize("windowed", [False, True])
@pytest.mark.parametrize("sizes", ATTENTIONS)
def test_attention(dtype, cap, windowed, sizes):
  q, parts = _attention(sizes, dtype, windowed)
  expected = dot_product_attention._attend(cap, *_wide(q, parts))
  tolerance = 1e-4 if dtype == "float32" else 2e-2
  wrong = [(*parts[0][:2], jnp.ones_like(parts[0][2])), parts[1]]
  for got, other, right in zip(bindings.attention(q, parts, cap=cap),
                               bindings.attention(q, wrong, cap=cap), expected):
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, right, rtol=tolerance, atol=tolerance)
    assert np.abs(other - right).max() > 0.05
  rounded = bindings.attention(q, parts, cap=cap, dtype="bfloat16")[0]
  np.testing.assert_array_equal(
      rounded, bindings.attention(q, parts, cap=cap)[0].astype("bfloat16"))


def test_attention_of_many_queries_to_those_before():
  q, parts = _attention((2, 1, 16, 1, 200, 3, 200), "float32")
  keys, values, _ = parts[1]
  causal = jnp.tril(jnp.ones((200, 200), bool))[None]
  parts[1] = keys, values, causal
  got = _attend(q, parts)
  np.testing.assert_allclose(got, _expected(q, parts),
                             rtol=1e-4, atol=1e-4)
  # As if there were no more than the first ones.
  few = [parts[0], (keys[..., :9], values[:, :, :9], causal[..., :9, :9])]
  np.testing.assert_array_equal(_attend(q[:, :9], few), got[:, :9])


def test_attention_to_one_stretch_and_with_large_scores():
  q, parts = _attention(ATTENTIONS[2], "float32")
  large, others = _attention((1, 1, 8, 1, 2, 3, 70), "float32")
  for case in ((q, parts[1:]), (100 * large, others)):
    np.testing.assert_allclose(_attend(*case), _expected(*case), rtol=1e-4,
                               atol=1e-4)


def test_slots_after_a_text_are_not_read():
  q, parts = _attention((2, 1, 16, 1, 3, 512, 3), "float32")
  keys, values, _ = parts[0]
  seen = (jnp.arange(512) < 60)[None, None]
  expected = _attend(q, [(keys, values, seen), parts[1]])
  keys, values = (x.at[index].set(jnp.nan) for x, index in (
      (keys, np.s_[..., 64:]), (values, np.s_[:, :, 64:])))
  np.testing.assert_array_equal(
      _attend(q, [(keys, values, seen), parts[1]]), expected)
  seen = seen.at[..., 99].set(True)
  assert np.isnan(_attend(q, [(keys, values, seen), parts[1]])).any()


# Less than a register, one of 16 lanes and one more, and a vocabulary.
VOCABULARIES = (5, 16, 17, 1000, 32001)


@pytest.mark.parametrize("size", VOCABULARIES)
@pytest.mark.parametrize("divisor", [1.0, 0.3])
def test_normalizers(size, divisor):
  x = 5 * np.random.default_rng(0).standard_normal((2, 3, size), np.float32)
  x[1, 1, 1:] = -np.inf
  largest, log_mass = bindings.log_normalizer(jnp.asarray(x),
                                              jnp.float32(divisor))
  np.testing.assert_array_equal(largest, x.max(axis=-1))
  exact = np.float64(x) - x.max(axis=-1, keepdims=True)
  exact = np.log(np.exp(exact / divisor).sum(axis=-1))
  np.testing.assert_allclose(log_mass, exact, rtol=1e-6, atol=1e-6)
  assert not log_mass[1, 1]


def test_normalizers_of_rows_with_their_own_divisors():
  x = jnp.asarray(np.random.default_rng(0).standard_normal((4, 3, 40)),
                  jnp.float32)
  divisors = jnp.array([1.0, 2.0, 0.5, 0.1])
  actual = jax.vmap(bindings.log_normalizer)(x, divisors)
  for got, expected in zip(
      actual, jax.vmap(norms._softmax_reference)(x, divisors)):
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.cases(5)
@pytest.mark.parametrize("size", VOCABULARIES)
@pytest.mark.parametrize("k", [1, 3, 5])
def test_draws_are_those_of_xla(size, k):
  """The same random words; the sums differ by roundings alone."""
  rng = np.random.default_rng(0)
  distributions = jax.nn.log_softmax(jnp.asarray(rng.standard_normal((6, size)),
                                                 jnp.float32))
  keys = jax.random.split(jax.random.key(1), 6)
  draw = lambda function: jax.vmap(
      lambda key, probs: function(key, probs, k=k))(keys, distributions)
  got, expected = draw(seam.gumbel_top_k), draw(gumbel._reference)
  np.testing.assert_array_equal(got[1], expected[1])
  np.testing.assert_allclose(got[0], expected[0], rtol=0, atol=2e-6)
  # Control: of other keys they are others.
  other = jax.vmap(lambda key, probs: seam.gumbel_top_k(key, probs, k))(
      keys[::-1], distributions)
  assert np.any(other[1] != got[1])


def test_all_gumbels():
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


@pytest.mark.cases(1)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "config", [tiny.LLAMA, tiny.OPT, tiny.GEMMA, tiny.NEOX, tiny.MIXTRAL],
    ids=["llama", "opt", "gemma", "neox", "mixtral"])
def test_models_compute_what_they_do_without(config, dtype, monkeypatch):
  model = tiny.random_model(dataclasses.replace(config, dtype=dtype))
  tokens = jnp.arange(14).reshape(2, 7) % 11
  got, _ = tiny.causal(model, tokens)
  monkeypatch.setenv(bindings.SWITCH, "xla")
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
  assert not bindings.supports_matmul(x, [kernel])
  np.testing.assert_allclose(seam.matmul(x, kernel), x @ kernel.T, rtol=1e-5,
                             atol=1e-5)
  assert not list(tmp_path.rglob("*.so"))


def test_nothing_is_compiled_within_a_trace(no_library, monkeypatch, tmp_path,
                                            caplog):
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
  monkeypatch.setattr(build, "_LOG", None)  # It would tell that it compiles.
  results = []
  for x in 1.0, jnp.ones(2):
    jax.jit(lambda x: results.append(seam.prepare()) or x).lower(x)
  assert results == [False, False]
  assert not list(tmp_path.rglob("*.so"))
  assert ["kernels.prepare()" in x for x in caplog.messages] == [True]


def test_generation_prepares_them(monkeypatch):
  """Before it traces anything, but not for arguments that do not fit."""
  model = tiny.random_model(tiny.LLAMA)
  generate = functools.partial(
      dj.generate, jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS,
      method=dj.methods.autoregressive(), target=model.lm,
      target_params=model.params)

  def prepare():
    raise RuntimeError("prepared")

  monkeypatch.setattr(seam, "prepare", prepare)
  with pytest.raises(ValueError, match="max_new_tokens=0"):
    generate(max_new_tokens=0)
  with pytest.raises(RuntimeError, match="prepared"):
    generate(max_new_tokens=1)


def test_shapes_of_parameters_prepare_them(monkeypatch):
  """Not within the trace that finds the shapes: nothing is compiled there."""
  traced = []
  monkeypatch.setattr(seam, "prepare", lambda: traced.append(
      bindings.is_tracing()))
  # Of a model that nobody has asked for: shapes are kept.
  transformer.abstract_params(dataclasses.replace(tiny.LLAMA, vocab_size=31))
  assert traced[0] is False


def test_what_there_is_no_code_for():
  x, w = jnp.ones((2, 4)), jnp.ones((3, 4))
  supports = functools.partial(bindings.supports_matmul, x)
  assert supports([w]) and supports([w, w])
  assert supports([w.astype("bfloat16")])
  assert not supports([w.astype("float16")])
  assert not supports([w[:0]])
  assert not supports([w, w.astype("bfloat16")])
  assert not supports([w, w], [jnp.ones((3, 1))])
  assert bindings.supports_floats(x.astype("bfloat16"))
  assert not bindings.supports_floats(x.astype("float16"))
