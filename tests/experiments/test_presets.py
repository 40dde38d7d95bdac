"""Published presets run as pasted, up to where the weights have been read.

Small random models of the same architectures are in the cache of the Hugging
Face hub, with the files that the published ones have.
"""

import functools
import json

import huggingface_hub
import jax
import numpy as np
import pytest

from configs import rsd_llama2, rsd_opt
from experiments import rsd
from experiments.evaluation import tree_cells
from experiments.app import launch
from models.folders import hub
from models.huggingface import config as hf_config, convert
from models.text import tokenizers
from support import (
    published_configs as published, tiny_models as tiny, torch_writer)
from support.tiny_tasks import jsonl

_COMMIT = "0123456789abcdef0123456789abcdef01234567"
_SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4,
          "vocab_size": 260}
_LLAMA = {**published.LLAMA_2, **_SMALL, "num_key_value_heads": 4,
          "intermediate_size": 24}
_OPT = {**published.OPT, **_SMALL, "ffn_dim": 24, "word_embed_proj_dim": 16,
        "do_layer_norm_before": True}
_END = {"eos_token": tokenizers.EOS, "bos_token": tokenizers.EOS}
_CHAT = {**_END, "chat_template":
         "{% for x in messages %}[INST] {{ x.content }} [/INST]{% endfor %}"}
_RECORDS = {
    "xsum": {"document": "A long day.", "summary": "Day."},
    "wmt18_de_en": {"translation": {"de": "Ja.", "en": "Yes."}},
    "dolly": {"instruction": "Why?", "context": "", "response": "So."},
    "cnn_dailymail": {"article": "A long day. " * 30}}


def _publish(cache, name, fields, settings=None, shards=0):
  """Puts a model into the cache of the hub, in files of torch if there are any.
  """
  base = cache / f"models--{name.replace('/', '--')}"
  (base / "refs").mkdir(parents=True)
  (base / "refs" / "main").write_text(_COMMIT)
  (base / "snapshots").mkdir()
  folder = base / "snapshots" / _COMMIT
  folder.with_name("fields").mkdir()
  config = published.read(folder.with_name("fields"), fields)
  convert.to_hf(folder, config, tiny.random_model(config).params)
  (folder / hf_config.FILE).write_text(json.dumps(fields))
  if shards:
    torch_writer.rewrite(folder, config.dtype, shards)
  (folder / "tokenizer_config.json").write_text(json.dumps(settings or _END))
  tokenizer = tokenizers.train(["to be or not to be"], 260)
  if fields["model_type"] == "opt":  # The files of GPT-2.
    tokenizer.model.save(str(folder))
  else:
    tokenizer.save(str(folder / "tokenizer.json"))


@pytest.fixture(name="cache", scope="module")
def _cache(tmp_path_factory):
  """A cache with all models of the presets."""
  cache = tmp_path_factory.mktemp("hub")
  for size in ("7b", "13b", "70b"):
    fields = {**_LLAMA, "num_key_value_heads": 2 if size == "70b" else 4}
    for kind, settings in (("", _END), ("-chat", _CHAT)):
      _publish(cache, f"meta-llama/Llama-2-{size}{kind}-hf", fields, settings)
  # Of Llama 1's time: half the positions.
  _publish(cache, "JackFram/llama-68m", {
      **{k: v for k, v in _LLAMA.items() if k in published.LLAMA_1},
      "max_position_embeddings": 2048, "torch_dtype": "float32"}, shards=1)
  for size in ("125m", "6.7b", "13b", "30b", "66b"):
    _publish(cache, f"facebook/opt-{size}", _OPT,
             shards=1 if size == "125m" else 3)
  _publish(cache, "facebook/opt-350m", {
      **_OPT, "word_embed_proj_dim": 8, "do_layer_norm_before": False},
           shards=1)
  return cache


class _WeightsRead(Exception):
  """Raised with the pair and the examples of a run, instead of measuring."""


@pytest.fixture(name="start")
def _start(cache, tmp_path, monkeypatch, parsed_flags):
  """Starts a run, and returns its pair, methods and examples."""
  monkeypatch.setattr(
      huggingface_hub, "snapshot_download", functools.partial(
          huggingface_hub.snapshot_download, cache_dir=cache,
          local_files_only=True))
  del parsed_flags
  hub.folder.cache_clear()

  def measure(config, pair, methods, examples, path):
    del config, path
    raise _WeightsRead(pair, methods, examples)

  monkeypatch.setattr(tree_cells, "measure", measure)

  def start(config):
    record = _RECORDS[config.task]
    config.update(data=str(jsonl(tmp_path / "data.jsonl", record)), prompts=1,
                  compilation_cache=False)
    with pytest.raises(_WeightsRead) as result:
      rsd.run(config, tmp_path / "run")
    return result.value.args

  yield start
  hub.folder.cache_clear()


_PAPER = ("xsum", "wmt18_de_en", "dolly")
_PRESETS = [
    (rsd_llama2.get_config, f"{size}{kind},{task}")
    for size, task in zip(("7b", "13b", "70b"), _PAPER)
    for kind in ("", "-chat")] + [
        (rsd_opt.get_config, f"{size},{task}") for size, task in zip(
            ("6.7b", "13b", "30b", "66b"), (*_PAPER, "xsum"))]


@pytest.mark.parametrize("get_config, presets", _PRESETS)
def test_a_preset_reads_its_weights(start, get_config, presets):
  pair, methods, examples = start(get_config(presets))
  assert len(methods) > 40 and len(examples.prompts) == 1
  assert pair.target.vocab_size == pair.draft.vocab_size == 260
  for params in (pair.target_params, pair.draft_params):
    for x in jax.tree.leaves(params):
      assert np.isfinite(np.asarray(x, np.float32)).all()


def test_the_second_drafter_of_the_paper(start):
  config = rsd_opt.get_config("13b,xsum")
  config.draft = "hub:facebook/opt-350m"
  pair, _, _ = start(config)
  assert pair.draft_params["embedding"].shape == (260, 8)


@pytest.mark.parametrize("get_config, draft", [
    (rsd_llama2.get_config, ""), (rsd_opt.get_config, "opt-125m"),
    (rsd_opt.get_config, "opt-350m")])
def test_an_evening_on_one_gpu(start, get_config, draft):
  config = get_config("one_gpu")
  assert config.buckets == 1 and (draft in config.drafts if draft else
                                  not config.drafts)
  config.draft = config.drafts[draft] if draft else config.draft
  _, methods, _ = start(config)
  assert len(methods) == 57  # As the docstring of configs/rsd_opt.py says.


def test_the_runs_of_spechub(start):
  _, methods, examples = start(rsd_llama2.get_config("spechub"))
  names = [x.name for x in methods]
  assert names[1::2] == [
      "rsd_c(2)", "rsd_c(2-2)", "rsd_c(2-2-2)", "rsd_c(2-2-2-2)"]
  assert not {*rsd_llama2.get_config("spechub").expected} - {*names}
  assert len(examples.prompts[0]) == 128


def test_a_model_that_is_not_in_the_cache(start):
  config = rsd_opt.get_config("13b,xsum")
  config.draft = "hub:facebook/opt-1.3b"
  with pytest.raises(launch.UserError, match="'hub:facebook/opt-1.3b' cannot "
                     "be had from the Hugging Face hub"):
    start(config)
