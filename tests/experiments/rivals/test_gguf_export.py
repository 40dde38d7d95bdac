"""Tests that models of the benchmark are the same as GGUF files."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.rivals import gguf_export, llama_files
from models import checkpoints, transformer
from models.gguf import files
from models.huggingface import convert
from support import tiny_models as tiny

gguf = pytest.importorskip("gguf", reason="needs pip install -e '.[gguf]'")

CONFIG = dataclasses.replace(tiny.LLAMA, dim=32, head_dim=8, hidden_dim=64)
TEXTS = np.array([[5, 1, 12, 7, 3, 5, 1]], np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp("gguf_export") / "hf"
  # As a pair is: numbers that 16 bits hold.
  params = jax.tree.map(lambda x: x.astype("bfloat16").astype(x.dtype),
                        tiny.random_model(CONFIG).params)
  convert.to_hf(folder, CONFIG, params)
  return folder


def _logits(path, change=lambda x: x):
  lm, params = checkpoints.load(path, dtype="float32")
  return np.asarray(transformer.causal_logits(
      lm, jax.tree.map(change, params), TEXTS))


def _rounded(x, weights):
  """Returns a matrix as the package writes and reads its rows."""
  kind = gguf.GGMLQuantizationType[gguf_export.KINDS[weights]]
  if x.ndim == 1:
    return x
  return gguf.dequantize(gguf.quantize(np.asarray(x), kind), kind)


@pytest.mark.parametrize("weights", ["float32", "bfloat16", "int8", "int4"])
def test_logits_are_equal(folder, tmp_path, weights):
  path = tmp_path / "model.gguf"
  gguf_export.write(folder, path, weights)
  assert [x.name for x in tmp_path.iterdir()] == ["model.gguf"]
  expected = _logits(folder, lambda x: _rounded(x, weights))
  np.testing.assert_allclose(_logits(path), expected, atol=1e-5)
  changed = np.abs(expected - _logits(folder)).max()
  assert (changed < 1e-5) == (weights in ("float32", "bfloat16"))
  kinds = {name: x.ggml_type for name, x in files.read(path).tensors.items()}
  assert kinds["output.weight"] == gguf_export.KINDS[weights]
  assert kinds["output_norm.weight"] == "F32"
  tokens = files.read(path).metadata["tokenizer.ggml.tokens"]
  assert tokens == [f"t{i}" for i in range(CONFIG.vocab_size)]


def test_rows_without_whole_blocks_stay_wide(tmp_path):
  convert.to_hf(tmp_path / "hf", tiny.LLAMA,
                tiny.random_model(tiny.LLAMA).params)
  gguf_export.write(tmp_path / "hf", tmp_path / "x.gguf", "int8")
  tensors = files.read(tmp_path / "x.gguf").tensors.values()
  assert {x.ggml_type for x in tensors} == {"F32"}


def test_servers_read_the_same_numbers(folder):
  tensors = llama_files.tensors(folder)
  assert llama_files.config(folder)["head_dim"] == CONFIG.head_dim
  for name, x in convert.tensor_files.tensors(folder).items():
    np.testing.assert_array_equal(tensors[name], x.read().astype(np.float32))


def test_other_architectures_are_refused(tmp_path):
  convert.to_hf(tmp_path / "hf", tiny.NEOX, tiny.random_model(tiny.NEOX).params)
  for refuses in (lambda: gguf_export.write(tmp_path / "hf", "x", "int8"),
                  lambda: llama_files.config(tmp_path / "hf")):
    with pytest.raises(ValueError, match="'gpt_neox': only Llamas"):
      refuses()
