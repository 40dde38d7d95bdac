"""Weights of 16 bits for a model that computes in float32: the same numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from models import checkpoints, transformer
from models.transformer import linear_ops
from support import tiny_models as tiny

CONFIGS = {
    "llama": tiny.LLAMA, "opt": tiny.OPT, "gemma": tiny.GEMMA,
    "neox": tiny.NEOX, "mixtral": tiny.MIXTRAL, "deepseek": tiny.DEEPSEEK_3,
    "scanned": dataclasses.replace(tiny.MIXTRAL, scan_layers=True),
    "projected": dataclasses.replace(tiny.OPT, embedding_dim=8)}
TOKENS = np.arange(10, dtype=np.int32).reshape(2, 5)


def narrow(config, params):
  """The model with its matrices in 16 bits."""
  config = dataclasses.replace(config, weights="bfloat16")
  like = transformer.abstract_params(config)
  return tiny.Model(transformer.language_model(config), jax.tree.map(
      lambda kind, x: x.astype(kind.dtype), like, params))


def wide(params):
  return jax.tree.map(lambda x: x.astype(jnp.float32), params)


def error(some, others):
  return np.abs(np.asarray(some) - np.asarray(others)).max()


@pytest.mark.parametrize("kernels", ["native", "xla"])
@pytest.mark.parametrize("width", [1, 3, 8, 17, 80])
def test_products(width, kernels, monkeypatch):
  monkeypatch.setenv("DECODING_JAX_KERNELS", kernels)
  kernel = jax.random.normal(jax.random.key(0), (10, 16), jnp.bfloat16)
  x = jax.random.normal(jax.random.key(1), (width, 16))
  expected = np.float64(x) @ np.float64(kernel).T
  for got in (linear_ops.matmul(x, kernel),
              linear_ops.by_inputs(x, kernel, 4).sum(axis=0)):
    assert got.dtype == jnp.float32
    assert error(got, expected) < 1e-5
  # Control: activations of 16 bits show.
  assert error(linear_ops.matmul(x.astype(jnp.bfloat16), kernel),
               expected) > 1e-3


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_forward_is_that_of_the_same_numbers_in_float32(name):
  config = CONFIGS[name]
  model = tiny.random_model(config)
  result = narrow(config, model.params)
  logits, same, others = (tiny.causal(x, TOKENS)[0] for x in (
      result, tiny.Model(model.lm, wide(result.params)), model))
  assert error(logits, same) < 1e-4
  # Control: rounding shows.
  assert error(logits, others) > 1e-3


@pytest.mark.parametrize("name", CONFIGS)
def test_what_has_16_bits(name):
  """Matrices of layers and tables of tokens; nothing else."""
  params = transformer.abstract_params(
      dataclasses.replace(CONFIGS[name], weights="bfloat16"))
  for path, x in jax.tree_util.tree_leaves_with_path(params):
    path = transformer.param_name(path)
    matrix = path.endswith(("kernel", "embedding", "head")) and not (
        "router" in path or "project_" in path)
    assert x.dtype == ("bfloat16" if matrix else "float32"), path


def test_slopes():
  kernel = jax.random.normal(jax.random.key(0), (4, 6), jnp.bfloat16)
  x = jax.random.normal(jax.random.key(1), (3, 6))
  of = lambda product: jax.grad(lambda *arrays: (product(*arrays)**2).sum(),
                                argnums=(0, 1))(x, kernel)
  for got, expected in zip(of(linear_ops.matmul), of(
      lambda x, kernel: x @ kernel.astype(x.dtype).T)):
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got.astype(np.float32),
                               expected.astype(np.float32), rtol=2e-2)


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
  jax.tree.map(np.testing.assert_array_equal, wide(result.params), whole.params)
  read = lambda model: sum(x.nbytes for x in jax.tree.leaves(model.params))
  assert read(result) < 0.6 * read(whole)
  assert error(tiny.causal(result, TOKENS)[0],
               tiny.causal(whole, TOKENS)[0]) < 1e-5


def test_greedy_text_is_that_of_float32():
  models = tiny.llama_models()
  config = dataclasses.replace(tiny.LLAMA, scan_layers=True)
  target, draft = (narrow(config, model.params) for model in models)
  out = tiny.generate(dj.methods.rsd_s(2, 2), tiny.Models(target, draft),
                      sampling=dj.Sampling(0.0))
  whole = tiny.Model(models.target.lm, wide(target.params))
  assert tiny.texts(out, tiny.LENGTHS) == tiny.greedy(
      whole, tiny.PROMPTS, tiny.LENGTHS, tiny.NEW)


def test_no_exact_numbers_of_float16():
  with pytest.raises(ValueError, match="weights='bfloat16', dtype='float16': "
                     "float32 or bfloat16 is needed"):
    dataclasses.replace(tiny.LLAMA, weights="bfloat16", dtype="float16")
