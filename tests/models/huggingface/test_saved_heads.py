"""Tests of heads that are saved, and of those of fewer bits."""

import dataclasses
import functools
import importlib
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import heads as registry
from models.heads import block, hydra
from models.huggingface import heads
from models.transformer import quantization
from support import published_heads as hf, small_heads

_TARGET = hf.TARGET
# Files of blocks have norms of queries and keys.
_WRITTEN = {name: (module, dataclasses.replace(
    config, layers=dataclasses.replace(config.layers, qk_norm=True))
                   if module is block else config, kept)
            for name, (module, config, kept) in small_heads.of_target(
                _TARGET).items()}


@functools.lru_cache(maxsize=None)
def random_params(kind):
  module, config, _ = _WRITTEN[kind]
  return module.init(jax.random.key(2), config, _TARGET)


def written(folder, kind):
  """Writes a head of random parameters, which are returned."""
  module, config, kept = _WRITTEN[kind]
  params = random_params(kind)
  heads.save(folder, module, config, params, kept, {"loss": 1})
  return params


@pytest.mark.cases(3)
@pytest.mark.parametrize("kind", _WRITTEN)
def test_what_is_saved_is_read_back(tmp_path, kind):
  params = written(tmp_path / "head", kind)
  assert heads.is_head(tmp_path / "head")
  loaded = heads.load(tmp_path / "head", _TARGET)
  assert loaded.kept == _WRITTEN[kind][2]
  jax.tree.map(np.testing.assert_array_equal, loaded.params, params)


@pytest.mark.cases(6)
@pytest.mark.parametrize("kind", _WRITTEN)
@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_matrices_of_fewer_bits(tmp_path, kind, weights):
  """Products and tables are narrow, no norm, bias or base of a kernel is."""
  params = written(tmp_path / "head", kind)
  loaded = heads.load(tmp_path / "head", _TARGET, weights=weights)
  opened = heads.open_folder(tmp_path / "head", _TARGET, weights=weights)
  assert jax.tree.map(lambda x: (x.shape, x.dtype), loaded.params) == (
      jax.tree.map(lambda x: (x.shape, x.dtype), opened.params))

  def check(x, whole):
    if whole.ndim != 2:
      assert x.dtype == whole.dtype
      np.testing.assert_array_equal(x, whole)
    elif weights == "int8":
      assert x.values.dtype == jnp.int8
      assert (abs(quantization.dequantize(x, jnp.float32) - whole) <=
              x.scales * .5001).all()
    else:
      assert x.dtype == jnp.bfloat16
      np.testing.assert_array_equal(x, whole.astype(jnp.bfloat16))

  jax.tree.map(check, loaded.params, params, is_leaf=quantization.is_matrix)
  module, config, kept = _WRITTEN[kind]
  with pytest.raises(ValueError, match="float32.*: a head of one type can be"):
    heads.save(tmp_path / "again", module, config, loaded.params, kept)


@pytest.mark.cases(6)
@pytest.mark.parametrize("kind", _WRITTEN)
def test_matrices_are_saved_in_8_bits(tmp_path, kind):
  """Read as 8 bits they are those of the rounded head, and so are floats."""
  params = written(tmp_path / "head", kind)
  module, config, kept = _WRITTEN[kind]
  heads.save(tmp_path / "narrow", module, config, params, kept, weights="int8")
  rounded, result, whole = (
      heads.load(tmp_path / folder, _TARGET, weights=weights).params
      for folder, weights in (("head", "int8"), ("narrow", "int8"),
                              ("narrow", "dtype")))
  same = functools.partial(np.testing.assert_allclose, rtol=1e-6)
  jax.tree.map(same, result, rounded)
  jax.tree.map(
      lambda x, y: same(x, quantization.dequantize(y, x.dtype)
                        if quantization.is_matrix(y) else y), whole, rounded)
  # Most of the file is matrices of 32 bits.
  sizes = [sum(x.stat().st_size for x in (tmp_path / folder).glob("*tensors"))
           for folder in ("head", "narrow")]
  assert sizes[1] < .6 * sizes[0]


@pytest.mark.cases(4)
@pytest.mark.parametrize("kind", _WRITTEN)
@pytest.mark.parametrize("narrow", [
    {"weights": "int8"}, {"weights": "bfloat16"}, {"dtype": "bfloat16"}],
    ids=["int8", "bfloat16", "dtype"])
def test_narrow_heads_draft_almost_alike(tmp_path, kind, narrow, target):
  written(tmp_path / "head", kind)
  whole, result = (hf.drafted(heads.load(tmp_path / "head", _TARGET, **more),
                              target.params)[1] for more in ({}, narrow))
  np.testing.assert_allclose(result[0], whole[0], atol=.01)


def test_a_head_of_ones_own(tmp_path, target, monkeypatch):
  page = (pathlib.Path(__file__).parents[3] / "docs/heads.md").read_text()
  code, = re.findall(r"```python\n(# heads/gated\.py.*?)```", page, re.S)
  (tmp_path / "gated.py").write_text(code)
  monkeypatch.setattr(registry, "__path__", [*registry.__path__, str(tmp_path)])
  module = importlib.import_module("models.heads.gated")
  assert "gated" in registry.names()
  kind = module.KINDS["gated"]
  config = kind.config(_TARGET, hf.DEPTH)
  params = module.init(jax.random.key(2), config, _TARGET)
  heads.save(tmp_path / "head", module, config, params, kind.kept(_TARGET))
  assert heads.is_head(tmp_path / "head")
  loaded = heads.load(tmp_path / "head", _TARGET)
  jax.tree.map(np.testing.assert_array_equal, loaded.params, params)
  drafts, log_probs = hf.drafted(loaded, target.params)
  tokens = jnp.asarray(np.append(hf.TEXT, drafts)[None], jnp.int32)
  read = [jnp.asarray(x, jnp.float32)[None] for x in hf.features(
      target.params, loaded.kept)]
  # The features of drafted tokens are read by no pair that is looked at.
  read = tuple(jnp.pad(x, ((0, 0), (0, hf.DEPTH), (0, 0))) for x in read)
  logits, places, _ = kind.predict(config, _TARGET, params, target.params, read,
                                   tokens, hf.DEPTH)
  for level in range(hf.DEPTH):
    at, = np.flatnonzero(places[level] == len(hf.TEXT) - 1 + level)
    np.testing.assert_allclose(log_probs[level], hf.log_softmax(np.asarray(
        logits[0, level, at])), atol=1e-5)


@dataclasses.dataclass(frozen=True)
class _Nested:
  layer: object = _TARGET


def test_control_a_config_that_needs_a_format(tmp_path):
  module = type(hydra)("models.heads.nested")
  module.Config = _Nested
  with pytest.raises(ValueError, match="nested.Config: layer is no number or "):
    heads.save(tmp_path / "head", module, _Nested(), {"x": jnp.ones(2)}, (1,))


def test_a_block_without_norms_is_not_saved(tmp_path):
  """No file of such could be read."""
  _, config, kept = _WRITTEN["dflash"]
  config = dataclasses.replace(config, layers=dataclasses.replace(
      config.layers, qk_norm=False))
  params = block.init(jax.random.key(0), config, _TARGET)
  with pytest.raises(ValueError, match="qk_norm=False"):
    heads.save(tmp_path / "head", block, config, params, kept)
  assert not list(tmp_path.rglob("*.safetensors"))
