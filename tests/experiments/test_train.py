"""Training: end to end, killed and taken up again, and told what is wrong."""

import dataclasses
import functools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
from jax.experimental.compilation_cache import compilation_cache
import numpy as np
import pytest

import decoding_jax as dj
from configs import train as configs
from experiments import train
from experiments.app import (
    compilation_cache as compilation_cache_lib, launch, preemption)
from experiments.data import batches, python_corpus as modules
from experiments.devices import model_pair
from experiments.training import array_files, own_texts, steps as training_steps
from models import checkpoints
from models.text import tokenizers
from models.transformer import presets
from support import tiny_tasks

ROOT = pathlib.Path(__file__).parents[2]
STEPS = 6


@pytest.fixture(name="compiled", scope="module", autouse=True)
def _compiled(tmp_path_factory):
  """All runs here are the same program: it is compiled once."""
  folder = tmp_path_factory.mktemp("compiled")
  compilation_cache_lib.keep(folder)
  yield folder
  # Without this, what other tests compile would be written there as well.
  jax.config.update("jax_compilation_cache_dir", None)
  compilation_cache.reset_cache()


@pytest.fixture(name="source", scope="module")
def _source(tmp_path_factory):
  """Forty small modules."""
  folder = tmp_path_factory.mktemp("source")
  for i in range(40):
    lines = [f"value_{i}_{j} = {i * j} + value_{j}" for j in range(20)]
    (folder / f"module_{i}.py").write_text("\n".join(lines) + "\n")
  return folder


_FIELDS = dict(steps=STEPS, windows=(16,), batch_tokens=64, eval_every=2,
               checkpoint_every=2)


def _config(source, folder, **changes):
  return tiny_tasks.make_training(
      folder, **{"corpus": str(source), **_FIELDS, **changes})


def _params(folder):
  return checkpoints.load(folder / "export")[1]


def _metrics(folder):
  lines = (folder / "work" / "metrics.jsonl").read_text().splitlines()
  return [json.loads(line) for line in lines]


@pytest.fixture(name="undisturbed", scope="module")
def _undisturbed(source, tmp_path_factory):
  folder = tmp_path_factory.mktemp("undisturbed")
  train.train(_config(source, folder))
  return folder


def _assert_same(folder, undisturbed):
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
               _params(folder), _params(undisturbed))
  assert [m["step"] for m in _metrics(folder)] == [2, 4, 6]
  for a, b in zip(_metrics(folder), _metrics(undisturbed)):
    np.testing.assert_allclose(a["held_out_loss"], b["held_out_loss"],
                               rtol=1e-5)


def test_a_finished_run_is_only_exported_again(source, undisturbed):
  losses = [m["held_out_loss"] for m in _metrics(undisturbed)]
  assert losses[-1] < losses[0]
  path = undisturbed / "export" / checkpoints.METADATA
  metadata = json.loads(path.read_text())
  assert metadata["steps"] == STEPS
  assert metadata["held_out_loss"] < losses[0]
  before = _params(undisturbed)
  train.train(_config(source, undisturbed))
  jax.tree.map(np.testing.assert_array_equal, _params(undisturbed), before)


@pytest.mark.usefixtures("listening")
@pytest.mark.parametrize("step, every, stop, error, saved", [
    (5, 2, lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt, None),
    # Within the fourth step, the first of which has the number 0.
    (3, STEPS, lambda: os.kill(os.getpid(), signal.SIGTERM), preemption.Stopped,
     ["4"])], ids=["between checkpoints", "SIGTERM makes one"])
def test_interrupted(source, undisturbed, tmp_path, monkeypatch, step, every,
                     stop, error, saved):
  make_batch = batches.train_batch
  # A shell's jobs in the background ignore it.
  signal.signal(signal.SIGINT, signal.default_int_handler)

  def interrupt(config, at, *args):
    if at == step:
      stop()
    return make_batch(config, at, *args)

  monkeypatch.setattr(batches, "train_batch", interrupt)
  config = _config(source, tmp_path, checkpoint_every=every)
  with pytest.raises(error):
    train.train(config)
  assert not (tmp_path / "export").exists()
  if saved:
    assert os.listdir(tmp_path / "work" / "checkpoints") == saved
  monkeypatch.undo()
  train.train(config)
  _assert_same(tmp_path, undisturbed)


def _start(source, folder, compiled, *before, **options):
  """Starts the program after other words of a command line."""
  config = _config(source, folder)
  flags = [f"--config.{name}={config[name]}" for name in (
      "corpus", "tokenizer", "workdir", "export", *_FIELDS)]
  return subprocess.Popen(
      [*before, sys.executable, "-m", "experiments.train",
       "--config=configs/train.py:smoke", *flags], cwd=ROOT,
      env={**os.environ, "PYTHONPATH": str(ROOT),
           "JAX_COMPILATION_CACHE_DIR": str(compiled),
           "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}, **options)


def test_killed(source, undisturbed, tmp_path, compiled):
  """SIGKILL as soon as the first checkpoint is there, whatever runs then."""
  process = _start(source, tmp_path, compiled, stderr=subprocess.DEVNULL)
  try:
    while not (tmp_path / "work" / "checkpoints" / "2").exists():
      assert process.poll() is None
      time.sleep(0.01)
  finally:
    process.send_signal(signal.SIGKILL)
    process.wait()
  train.train(_config(source, tmp_path))
  _assert_same(tmp_path, undisturbed)


def test_a_loss_that_is_nan_is_not_saved(source, tmp_path, monkeypatch):
  monkeypatch.setattr(train.training_run, "updates", lambda *_: (
      lambda step, state, batch: (state, np.nan)))
  with pytest.raises(launch.UserError, match="step [0-9]+: the loss is nan"):
    train.train(_config(source, tmp_path))
  assert not list((tmp_path / "work" / "checkpoints").iterdir())
  assert not (tmp_path / "export").exists()


def test_distillation(source, undisturbed, tmp_path, monkeypatch):
  small = dataclasses.replace(presets.PRESETS["smoke"], dim=24)
  monkeypatch.setitem(presets.PRESETS, "small", small)
  config = _config(
      source, tmp_path, preset="small", teacher=str(undisturbed / "export"),
      tokenizer=str(undisturbed / "export"), loss="total_variation",
      sample_fraction=0.5,
      sample_rows=5, sample_length=20, sample_prompt=4, sample_batch=4)
  metadata = train.train(config)
  assert 0 < metadata["overlap"] < 1
  assert metadata["teacher_loss"] > 0
  files = sorted((tmp_path / "work" / "samples").iterdir())
  samples = np.concatenate([np.load(x) for x in files])
  assert samples.shape == (8, 20) and samples.min() >= 0
  # The second start reads them; the teacher need not write again.
  monkeypatch.setattr(own_texts, "_continued", None)
  train.train(config)


def _damage(folder):
  """Cuts the arrays of a checkpoint short, as a full disk does."""
  for path in folder.glob("**/d/*"):
    path.write_bytes(path.read_bytes()[:path.stat().st_size // 2])


def test_a_damaged_checkpoint_is_done_without(source, undisturbed, tmp_path,
                                              monkeypatch, capsys):
  """It is set aside, and one that cannot be read for another reason stays."""
  shutil.copytree(undisturbed, tmp_path, dirs_exist_ok=True)
  config = _config(source, undisturbed, workdir=str(tmp_path / "work"),
                   export=str(tmp_path / "export"))
  saved = tmp_path / "work" / "checkpoints"
  text = (tmp_path / "work" / "run.json").read_text()
  (tmp_path / "work" / "run.json").write_text(
      text.replace(str(undisturbed / "work"), str(tmp_path / "work")))
  with monkeypatch.context() as patch:
    patch.setattr(train.ocp.CheckpointManager, "restore",
                  lambda *_, **__: 1 / 0)
    with pytest.raises(launch.UserError, match="6' cannot be read, though its"):
      train.train(config)
  assert {path.name for path in saved.iterdir()} == {"4", "6"}
  _damage(saved / "6")
  train.train(config)
  assert f"'{saved / '6'}' is damaged: going back to step 4. It is kept" in (
      capsys.readouterr().err)
  assert len(list((tmp_path / "work" / "damaged").iterdir())) == 1
  _assert_same(tmp_path, undisturbed)
  for path in saved.iterdir():
    _damage(path)
  with pytest.raises(launch.UserError, match="has no checkpoint that can be"):
    train.train(config)


@pytest.mark.parametrize("content", [b"", b"text", b"\x93NUMPY\x01\x00v\x00{"])
def test_damaged_samples_are_written_again(tmp_path, capsys, content):
  samples = np.arange(6, dtype=np.int32).reshape(2, 3)
  read = lambda: array_files.rows(tmp_path, "samples", 2, 3, 2,
                                  lambda chosen, _: samples[chosen])
  read()
  assert "damaged" not in capsys.readouterr().err
  (tmp_path / "00000000.npy").write_bytes(content)
  np.testing.assert_array_equal(read(), samples)
  assert "it is written again" in capsys.readouterr().err
  # Of another shape, as of a run that was killed by an older version.
  np.save(tmp_path / "00000000.npy", samples[:1])
  np.testing.assert_array_equal(read(), samples)
  samples = None
  np.testing.assert_array_equal(read(), np.arange(6).reshape(2, 3))


def test_a_full_disk_is_one_line(source, tmp_path, compiled):
  """Files of more than 16 KB cannot be written, nor can checkpoints."""
  process = _start(
      source, tmp_path, compiled, "bash", "-c", 'ulimit -f 16 && exec "$@"', "",
      text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
  _, errors = process.communicate()
  assert process.returncode == 1
  assert "Traceback" not in errors
  last = errors.splitlines()[-1]
  assert last.startswith("train: error: ") and "File too large" in last
  assert last.endswith("; results written before are kept.")


@pytest.mark.cases(1)
@pytest.mark.parametrize("changed", ["teacher", "corpus", "tokenizer"])
def test_a_run_goes_on_from_the_same_files(source, undisturbed, tmp_path,
                                           changed):
  """Else it would go on, or have ended, with what was learned from others."""
  teacher, corpus = tmp_path / "teacher", tmp_path / "corpus"
  shutil.copytree(undisturbed / "export", teacher)
  shutil.copytree(source, corpus)
  config = _config(corpus, tmp_path, teacher=str(teacher),
                   tokenizer=str(teacher))
  train.train(config)
  if changed == "teacher":
    params = checkpoints.load(teacher)[1]
    checkpoints.save(teacher, checkpoints.load_config(teacher),
                     jax.tree.map(lambda x: 2 * x, params),
                     tokenizers.load(teacher))
  elif changed == "corpus":
    (corpus / "module_1.py").write_text("value = 1\n" * 20)
    modules.modules.cache_clear()
  else:
    tokenizers.save(tokenizers.train([], 257), teacher)
  with pytest.raises(launch.UserError, match="results of used_files="):
    train.train(config)


def test_the_loss_changes_on_the_way(source, tmp_path):
  config = _config(source, tmp_path, loss="reverse_kl", final_loss_from=0.5)
  names = [training_steps.loss_at(config, step) for step in range(STEPS)]
  assert names == ["reverse_kl"] * 3 + ["total_variation"] * 3


def test_muon_makes_updates_of_kernels_orthogonal(source, tmp_path):
  """Whatever their gradient, all of their singular values are about 1."""
  config = _config(source, tmp_path, optimizer="muon", warmup_steps=0,
                   weight_decay=0.0, matrix_learning_rate=0.5)
  rng = np.random.default_rng(0)
  zeros = functools.partial(np.zeros, dtype=np.float32)
  params = {"kernel": zeros((8, 12)), "embedding": zeros((8, 12)),
            "layers": {"kernel": zeros((3, 8, 12))}}
  grads = jax.tree.map(lambda x: zeros(x.shape) + rng.normal(size=x.shape),
                       params)
  optim = training_steps.optimizer(config)
  updates, _ = optim.update(grads, optim.init(params), params)
  values = lambda x: np.linalg.svd(np.asarray(x), compute_uv=False) / 0.5
  assert np.ptp(values(grads["kernel"]) / np.mean(values(grads["kernel"]))) > 1
  for kernels in updates["kernel"], updates["layers"]["kernel"]:
    assert (abs(values(kernels) - 1) < 0.4).all()
  # What is no kernel is updated by AdamW, at first each entry by the same.
  rest = abs(np.asarray(updates["embedding"])) / config.learning_rate
  np.testing.assert_allclose(rest, rest[0, 0], rtol=1e-3)
  assert 1 <= rest[0, 0] < 2


def test_mixed_precision(source, undisturbed, tmp_path):
  train.train(_config(source, tmp_path, compute_dtype="bfloat16",
                      export_dtype="bfloat16"))
  for x in jax.tree.leaves(_params(tmp_path)):
    assert x.dtype == np.float32 and (x == x.astype("bfloat16")).all()
  for mine, other in zip(_metrics(tmp_path), _metrics(undisturbed)):
    assert mine["train_loss"] != other["train_loss"]
    assert abs(mine["train_loss"] - other["train_loss"]) < 0.05


@pytest.mark.parametrize("field, value, message", [
    ("preset", "huge", "--config.preset='huge' is not one of"),
    ("loss", "l2", "--config.loss='l2' is not one of forward_kl, "),
    ("final_loss", "block_verification",
     "final_loss='block_verification' follows the text"),
    ("optimizer", "sgd", "--config.optimizer='sgd' is not one of adamw, "),
    ("compute_dtype", "float8", "config.compute_dtype='float8' is not one of"),
    ("steps", 0, "--config.steps=0: at least 1"),
    ("warmup_steps", STEPS, "--config.warmup_steps=6 must be at least 0"),
    ("learning_rate", -1.0, "--config.learning_rate=-1.0 must be positive"),
    ("workdir", "", "--config.workdir='' must name a folder"),
    ("windows", (5000,), "--config.windows=(5000,) must be lengths from 1 to"),
    ("windows", (), "--config.windows=() must be lengths"),
    ("sample_fraction", 1.5, "--config.sample_fraction=1.5 is not in [0, 1]"),
    ("sample_fraction", 0.5, "needs a --config.teacher"),
    ("suffix_length", 3, "suffix_length=3: at least 1 and 4 are needed"),
    ("suffix_length", 32, "sum must divide --config.windows=(16,)"),
    ("teacher", "/nowhere", "model '/nowhere' is neither a folder nor one"),
    ("corpus", "/nowhere", "No train module (*.py) under '/nowhere'"),
])
def test_settings_that_cannot_be_trained(source, tmp_path, field, value,
                                         message):
  tiny_tasks.check_refused(message, _config(source, tmp_path, **{field: value}))


@pytest.mark.parametrize("field, value, message", [
    ("sample_rows", 0, "--config.sample_rows=0: at least 1 is needed"),
    ("sample_prompt", 0, "--config.sample_prompt=0: at least 1 is needed"),
    ("sample_batch", 0, "--config.sample_batch=0: at least 1 is needed"),
    ("sample_prompt", 40, "length=20 must exceed --config.sample_prompt=40"),
    ("sample_length", 5000, "sample_length=5000 must be at most 320, the max"),
])
def test_samples_that_cannot_be_written(source, undisturbed, tmp_path, field,
                                        value, message):
  teacher = str(undisturbed / "export")
  fields = dict(teacher=teacher, tokenizer=teacher, sample_fraction=0.5,
                sample_rows=5, sample_length=20, sample_prompt=4)
  with pytest.raises(launch.UserError, match=message):
    train.train(_config(source, tmp_path, **{**fields, field: value}))
  # Else its settings would refuse those that are right.
  assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("export, fields, message", [
    ("work", {}, "export='.*work' would replace --config.workdir='.*work'"),
    (".", {}, "would replace --config.workdir"),
    ("model", {"tokenizer": "model/tokens"}, "would replace --config.tokenizer"
     ),
    ("model", {"teacher": "model"}, "would replace --config.teacher"),
    ("kept", {}, "'.*kept' has 'notes.txt', which is no part of a model"),
    ("kept/notes.txt", {}, "'.*notes.txt' is no folder")])
def test_a_model_replaces_nothing_but_a_model(source, tmp_path, export, fields,
                                              message):
  notes = tmp_path / "kept" / "notes.txt"
  notes.parent.mkdir()
  (tmp_path / "model").mkdir()
  notes.write_text("all that I know")
  config = _config(source, tmp_path, export=str(tmp_path / export),
                   **{k: str(tmp_path / v) for k, v in fields.items()})
  with pytest.raises(launch.UserError, match=message):
    train.train(config)
  assert notes.read_text() == "all that I know"
  assert sorted(x.name for x in tmp_path.iterdir()) == ["kept", "model"]


def test_what_else_is_refused(source, undisturbed, tmp_path):
  """A corpus shorter than a window, other settings, and unknown runs."""
  for i in range(40):
    (tmp_path / f"module_{i}.py").write_text("x\n")
  tiny_tasks.check_refused("shorter than the splits of the",
                           _config(tmp_path, tmp_path))
  tiny_tasks.check_refused("learning_rate", _config(source, undisturbed,
                                                    learning_rate=1.0))
  with pytest.raises(ValueError, match="'tiny' is not one of target, draft"):
    configs.get_config("tiny")


@pytest.mark.cases(1)
@pytest.mark.parametrize("head", ["medusa", "fspad"])
def test_a_head_is_trained_and_drafts(source, undisturbed, tmp_path, head):
  """From the features of its target to a folder that --draft takes."""
  teacher = str(undisturbed / "export")
  metadata = train.train(_config(
      source, tmp_path, head=head, head_depth=2, teacher=teacher,
      tokenizer=teacher))
  assert 0 < metadata["overlap"] < 1 < metadata["tokens_a_call"]
  folder = str(tmp_path / "export")
  pair = model_pair.open_pair(teacher, folder)
  assert 0 < pair.parameter_ratio
  pair = model_pair.with_params(pair)
  method = dj.methods.rsd_c((2, 1))
  model_pair.check(method, pair, 4, 6, dj.Sampling())
  out = dj.generate(jax.random.key(0), np.ones((2, 4), np.int32), [4, 3],
                    method=method, target=pair.target,
                    target_params=pair.target_params, draft=pair.draft,
                    draft_params=pair.draft_params, max_new_tokens=6)
  np.testing.assert_array_equal(out.stats.emitted, [6, 6])
  np.testing.assert_array_equal(
      out.stats.draft_calls, pair.draft.forwards(2) * out.stats.target_calls)


@pytest.mark.parametrize("changes, message", [
    (dict(head="hat"), "--config.head='hat' is not one of dflash, dspark, "),
    (dict(head="medusa"), "reads the features of a --config.teacher"),
    (dict(head="medusa", teacher="python-target", head_depth=0),
     "head_depth=0: at least 1"),
    (dict(head="dspark", teacher="python-target", head_layers=-1),
     "head_layers=-1 must be positive, and is of --config.head=dflash or"),
    (dict(head="dflash", teacher="python-target", head_rank=8),
     "head_rank=8 must be positive, and is of --config.head=dspark alone"),
    (dict(head="dspark", teacher="python-target", head_vocab=9, own_texts=256,
          loss="block_verification"),
     "loss='block_verification' follows the text through the levels of a head"),
])
def test_heads_that_cannot_be_trained(source, tmp_path, changes, message):
  tiny_tasks.check_refused(message, _config(source, tmp_path, **changes))
