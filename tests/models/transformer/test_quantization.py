"""Weights of 8 bits, rounded and read one by one, and of 16 bits."""

import dataclasses
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from experiments.training import steps as training_steps
from models import checkpoints, transformer
from models.transformer import linear_ops, quantization
from support import tiny_models as tiny

CONFIGS = {
    "llama": tiny.LLAMA, "opt": tiny.OPT, "gemma": tiny.GEMMA,
    "neox": tiny.NEOX, "mixtral": tiny.MIXTRAL, "deepseek": tiny.DEEPSEEK_3,
    "scanned": dataclasses.replace(tiny.MIXTRAL, scan_layers=True),
    "projected": dataclasses.replace(tiny.OPT, embedding_dim=8)}
TOKENS = np.arange(10, dtype=np.int32).reshape(2, 5)


EACH = pytest.mark.parametrize("weights", ["int8", "bfloat16"])


def narrow(config, weights="int8", model=None):
  """The model with matrices of 8 or 16 bits."""
  params = (model or tiny.random_model(config)).params
  if weights == "int8":
    return tiny.Model(*checkpoints.quantize(config, params))
  config = dataclasses.replace(config, weights=weights)
  return tiny.Model(transformer.language_model(config), jax.tree.map(
      lambda kind, x: x.astype(kind.dtype), transformer.abstract_params(config),
      params))


def widened(params, dtype="float32"):
  """The same numbers in one type."""
  return jax.tree.map(
      lambda x: quantization.dequantize(x, dtype) if quantization.is_matrix(x)
      else x.astype(dtype), params, is_leaf=quantization.is_matrix)


def equal(some, others):
  jax.tree.map(np.testing.assert_array_equal, some, others)


def error(some, others):
  return np.abs(np.asarray(some, np.float64) - np.asarray(others)).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(7, 5), (3, 4, 6), (1, 1)])
def test_no_weight_is_off_by_more_than_half_a_scale(shape, dtype):
  x = jax.random.normal(jax.random.key(0), shape, dtype)
  result = quantization.quantize(x)
  assert result.values.dtype == jnp.int8 and result.values.shape == shape
  assert result.scales.shape == (*shape[:-1], 1)
  exact = np.asarray(x, np.float64)
  # Beside the half, what float32 rounds.
  off = np.abs(np.float64(result.values) * result.scales - exact)
  assert (off <= np.float64(result.scales) * (0.5 + 2e-5)).all()
  np.testing.assert_allclose(result.scales[..., 0],
                             np.abs(exact).max(axis=-1) / 127, rtol=1e-6)
  assert (np.abs(np.asarray(result.values)).max(axis=-1) == 127).all()


def test_weights_that_are_hardly_any():
  x = np.array([[0, 0], [0, -2e-3], [2e-43, 1e-43]], np.float32)
  for result in (quantization.quantize(x), jax.jit(quantization.quantize)(x)):
    assert result.values.tolist() == [[0, 0], [0, -127], [0, 0]]
    off = np.abs(quantization.dequantize(result, "float32") - x)
    assert np.isfinite(off).all() and off.max() < 1e-9


def test_matrices_of_the_host_are_rounded_alike(monkeypatch):
  x = np.random.default_rng(0).normal(size=(3, 5, 8)).astype(np.float16)
  for at_once in (1, 17, 2**20):
    monkeypatch.setattr(quantization, "_AT_ONCE", at_once)
    result = quantization.on_host(x)
    assert isinstance(result.values, np.ndarray)
    equal(result, quantization.quantize(x))


@pytest.mark.cases(12)
@pytest.mark.parametrize("weights, dtype", [
    ("int8", "float32"), ("int8", "bfloat16"), ("bfloat16", "float32")])
@pytest.mark.parametrize("width", [1, 3, 8, 17, 80])
@pytest.mark.parametrize("kernels", ["native", "xla"])
def test_products(weights, dtype, width, kernels, monkeypatch):
  monkeypatch.setenv("DECODING_JAX_KERNELS", kernels)
  whole = jax.random.normal(jax.random.key(0), (10, 16))
  x = jax.random.normal(jax.random.key(1), (width, 16), dtype)
  if weights == "int8":
    kernel = quantization.quantize(whole)
    numbers = np.float64(kernel.values) * kernel.scales
  else:
    kernel = whole.astype(weights)
    numbers = np.float64(kernel)
  expected = np.float64(x) @ numbers.T
  got, parts = (linear_ops.matmul(x, kernel),
                linear_ops.by_inputs(x, kernel, 4))
  assert got.dtype == jnp.float32 and got.shape == (width, 10)
  assert parts.shape == (4, width, 10)
  assert max(error(y, expected) for y in (got, parts.sum(axis=0))) < 1e-5
  if weights == "bfloat16":
    # Control: activations of 16 bits show.
    assert error(linear_ops.matmul(x.astype(jnp.bfloat16), kernel),
                 expected) > 1e-3


def test_groups_of_four_and_of_eight_bits():
  x = np.random.default_rng(0).normal(size=(3, 5, 64)).astype(np.float32)
  for bits, most, rows in ((4, 15, np.uint8), (8, 254, np.int8)):
    how = quantization.Format(bits, 2)
    result = quantization.quantize(x, how)
    assert result.values.dtype == rows and quantization.shape(result) == x.shape
    assert quantization.format_of(result) == how
    off = np.abs(quantization.dequantize(result, "float32") - x)
    groups = x.reshape(3, 5, 2, 32)
    largest = (np.ptp(groups, -1) if bits == 4
               else 2 * np.abs(groups).max(-1)) / most
    # Half of a scale, and what 16 bits of scale and least number round.
    off = off.reshape(groups.shape).max(-1)
    assert (off <= largest * 0.5 + 4e-3).all()
    # Control: a bit less does not do.
    assert (off > largest * 0.4).any()
    equal(result, quantization.on_host(x, how))
    equal(result, jax.jit(quantization.quantize, static_argnums=1)(x, how))


def test_a_model_in_groups_of_four_bits(tmp_path):
  """Tables have 8 bits; who cannot be divided into groups has them by rows."""
  config = dataclasses.replace(tiny.LLAMA, dim=32, head_dim=8, hidden_dim=40)
  model = tiny.random_model(config)
  checkpoints.save(tmp_path / "model", config, model.params)
  lm, params = checkpoints.load(tmp_path / "model", weights="int4")
  formats = {transformer.param_name(key): quantization.format_of(leaf)
             for key, leaf in jax.tree_util.tree_leaves_with_path(
                 params, is_leaf=quantization.is_matrix)
             if quantization.is_matrix(leaf)}
  assert formats["embedding"] == (8, 1)
  assert formats["layers/layer_0/attention/key/kernel"] == (4, 1)
  assert formats["layers/layer_0/feed_forward/down/kernel"] == (8, 1)
  np.testing.assert_allclose(
      tiny.causal(tiny.Model(lm, params), TOKENS)[0],
      tiny.causal(tiny.Model(lm, widened(params)), TOKENS)[0],
      atol=1e-5)
  assert transformer.num_params(params) == transformer.num_params(model.params)


def test_rows_of_a_table():
  table = quantization.quantize(jax.random.normal(jax.random.key(0), (5, 3)))
  index = jnp.array([[4, 0], [4, 4]])
  np.testing.assert_array_equal(
      linear_ops.lookup(table, index),
      quantization.dequantize(table, "float32")[index])


def test_slopes_of_weights_in_16_bits():
  kernel = jax.random.normal(jax.random.key(0), (4, 6), jnp.bfloat16)
  x = jax.random.normal(jax.random.key(1), (3, 6))
  of = lambda product: jax.grad(lambda *arrays: (product(*arrays)**2).sum(),
                                argnums=(0, 1))(x, kernel)
  for got, expected in zip(of(linear_ops.matmul), of(
      lambda x, kernel: x @ kernel.astype(x.dtype).T)):
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got.astype(np.float32),
                               expected.astype(np.float32), rtol=2e-2)


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", CONFIGS)
@EACH
def test_forward_is_that_of_the_same_numbers_in_float32(name, weights):
  model = tiny.random_model(CONFIGS[name])
  result = narrow(CONFIGS[name], weights)
  logits, same, others = (tiny.causal(x, TOKENS)[0] for x in (
      result, tiny.Model(model.lm, widened(result.params)), model))
  assert error(logits, same) < 1e-4
  # Control: rounding shows.
  assert error(logits, others) > {"int8": 1e-2, "bfloat16": 1e-3}[weights]


def test_forward_in_16_bits():
  """Where products are of bfloat16 the rest rounds as much as ever."""
  config = dataclasses.replace(tiny.LLAMA, dtype="bfloat16")
  model, result = tiny.random_model(tiny.LLAMA), narrow(config)
  whole = tiny.Model(model.lm, widened(result.params))
  logits, exact = (tiny.causal(x, TOKENS)[0] for x in (result, whole))
  same, _ = tiny.causal(tiny.Model(
      tiny.random_model(config).lm, widened(result.params, "bfloat16")),
                        TOKENS)
  assert logits.dtype == jnp.float32
  assert np.std(logits - exact) < 1.5 * np.std(same - exact)


@EACH
@pytest.mark.parametrize("name", CONFIGS)
def test_what_is_narrow(name, weights):
  """Matrices of layers and tables of tokens; nothing else."""
  whole = transformer.abstract_params(CONFIGS[name])
  params = transformer.abstract_params(
      dataclasses.replace(CONFIGS[name], weights=weights))
  for path, x in jax.tree_util.tree_leaves_with_path(
      params, is_leaf=quantization.is_matrix):
    path = transformer.param_name(path)
    matrix = path.endswith(("kernel", "embedding", "head")) and not (
        "router" in path or "project_" in path)
    assert quantization.is_matrix(x) == (matrix and weights == "int8"), path
    x = x.values if quantization.is_matrix(x) else x
    assert x.dtype == (weights if matrix else "float32"), path
  same = lambda x, y: x.shape == y.shape and x.dtype == y.dtype
  assert jax.tree.all(jax.tree.map(same, params,
                                   narrow(CONFIGS[name], weights).params))
  # Scales are no parameters.
  assert transformer.num_params(params) == transformer.num_params(whole)


@pytest.mark.cases(2)
@pytest.mark.parametrize("method, weights", [
    (dj.methods.autoregressive(), "int8"), (dj.methods.speculative(2), "int8"),
    (dj.methods.rsd_s(2, 2), "int8"), (dj.methods.rsd_s(2, 2), "bfloat16")])
def test_greedy_text_is_that_of_the_same_numbers(method, weights):
  """By another narrow model as drafter, and of another text than before."""
  models = tiny.llama_models()
  config = dataclasses.replace(tiny.LLAMA, scan_layers=True)
  target, draft = (narrow(config, weights, model) for model in models)
  out = tiny.generate(method, tiny.Models(target, draft),
                      sampling=dj.Sampling(0.0))
  whole = tiny.Model(models.target.lm, widened(target.params))
  assert tiny.texts(out, tiny.LENGTHS) == tiny.greedy(
      whole, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)
  # The draft has some of the distribution of the target left, and so all of its
  # text.
  drafted = out.stats.emitted.sum() / out.stats.target_calls.sum()
  assert method.name == "autoregressive" or drafted > 1.1


@pytest.fixture(name="folders", scope="module")
def _folders(tmp_path_factory):
  """One model, as it is saved here and as transformers has it."""
  root = tmp_path_factory.mktemp("models")
  params = tiny.random_model(tiny.LLAMA).params
  checkpoints.save(root / "ours", tiny.LLAMA, params)
  checkpoints.to_hf(root / "theirs", tiny.LLAMA, params)
  return root


@pytest.mark.parametrize("kind", ["ours", "theirs"])
@pytest.mark.parametrize("kwargs", [
    {}, {"scan_layers": True, "dtype": "bfloat16"}], ids=str)
def test_a_model_is_rounded_while_it_is_read(folders, kind, kwargs):
  _, whole = checkpoints.load(folders / kind, **kwargs)
  lm, loaded = checkpoints.load(folders / kind, weights="int8", **kwargs)
  config = dataclasses.replace(tiny.LLAMA, weights="int8", **kwargs)
  assert lm is transformer.language_model(config)
  equal(loaded, quantization.tree(transformer.abstract_params(config), whole))
  assert {x.dtype for x in jax.tree.leaves(loaded)} == {
      jnp.dtype("int8"), jnp.dtype("float32"), jnp.dtype(config.dtype)}


@pytest.mark.parametrize("kind", ["ours", "theirs"])
@pytest.mark.parametrize("scan_layers", [False, True])
def test_what_a_folder_holds_in_bfloat16_stays_as_it_is(kind, scan_layers,
                                                        tmp_path):
  stored = dataclasses.replace(tiny.LLAMA, dtype="bfloat16")
  params = tiny.random_model(stored).params
  write = checkpoints.save if kind == "ours" else checkpoints.to_hf
  write(tmp_path / kind, stored, params)
  load = lambda **kwargs: tiny.Model(*checkpoints.load(
      tmp_path / kind, dtype="float32", scan_layers=scan_layers, **kwargs))
  result, whole = load(weights="bfloat16"), load()
  assert result.lm is transformer.language_model(dataclasses.replace(
      tiny.LLAMA, weights="bfloat16", scan_layers=scan_layers))
  equal(widened(result.params), whole.params)
  read = lambda model: sum(x.nbytes for x in jax.tree.leaves(model.params))
  assert read(result) < 0.6 * read(whole)
  assert error(tiny.causal(result, TOKENS)[0],
               tiny.causal(whole, TOKENS)[0]) < 1e-5


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["ours", "theirs"])
def test_no_host_has_more_than_one_matrix(folders, kind, monkeypatch):
  on_host, read = quantization.on_host, []

  def spy(x, how):
    gc.collect()
    assert not any(before() is not None for before in read)
    read.append(weakref.ref(x))
    return on_host(x, how)

  monkeypatch.setattr(quantization, "on_host", spy)
  checkpoints.load(folders / kind, weights="int8")
  assert len(read) == 2 + 2 * 7


def test_damaged_parameters_are_named(tmp_path):
  params = tiny.random_model(tiny.LLAMA).params
  params = {**params, "head": params["head"].at[3, 2].set(jnp.nan)}
  checkpoints.save(tmp_path / "model", tiny.LLAMA, params)
  with pytest.raises(ValueError, match="parameter head has infinite or NaN"):
    checkpoints.load(tmp_path / "model", weights="int8")


def test_what_cannot_be_had(tmp_path):
  config = dataclasses.replace(tiny.LLAMA, weights="int8")
  params = narrow(tiny.LLAMA).params
  for function, what in (
      (lambda: checkpoints.save(tmp_path / "x", config, params), "saved"),
      (lambda: checkpoints.to_hf(tmp_path / "x", config, params),
       "written for transformers"),
      (lambda: training_steps.init(None, config, params), "trained")):
    with pytest.raises(ValueError, match="weights='int8': a model can be "
                       f"{what} with weights='dtype' alone"):
      function()
  assert not list(tmp_path.iterdir())
  with pytest.raises(ValueError, match="weights='int7' is not one of"):
    dataclasses.replace(tiny.LLAMA, weights="int7")
  with pytest.raises(ValueError, match="weights='bfloat16', dtype='float16': "
                     "float32 or bfloat16 is needed"):
    dataclasses.replace(tiny.LLAMA, weights="bfloat16", dtype="float16")
  reward = dataclasses.replace(tiny.LLAMA, outputs=1)
  with pytest.raises(ValueError, match="weights='int8', outputs=1: a model "
                     "without logits needs 'dtype'"):
    checkpoints.quantize(reward, tiny.random_model(reward).params)
