"""Training on meshes: the losses of one device, killed and taken up again."""

import re
import signal
import time

import numpy as np
import pytest

from configs import train as configs
from experiments import train
from experiments.devices import mesh_shapes
from experiments.training import on_mesh, run as training_run
from models import checkpoints
from support import helpers, on_training_meshes, tiny_models as tiny

KINDS = on_training_meshes.KINDS
# The quick suite has one of them.
MESHES = ("8x1/1", "4x2/2", "4x2/1")
_OFF = 1e-5


def assert_same(actual, expected):
  """Metrics of two runs are equal but for the order of sums."""
  assert [x["step"] for x in actual] == [x["step"] for x in expected] == [2, 4]
  for a, b in zip(actual, expected):
    assert a.keys() == b.keys() and "train_loss" in a
    for name in a:
      assert a[name] == pytest.approx(b[name], abs=_OFF, rel=_OFF)


@pytest.mark.long
def test_a_distilled_drafter(tmp_path):
  """Control: the losses change from step to step by more than they differ."""
  result = helpers.found_by(on_training_meshes.__file__, tmp_path, "distilled",
                            "distilled:4x2/2")
  one, split = (x["metrics"] for x in result.values())
  assert_same(split, one)
  assert abs(one[0]["train_loss"] - one[1]["train_loss"]) > 100 * _OFF


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_those_of_one_device(tmp_path, kind):
  """And devices exchange sums of gradients, but no parameters.

  A step sums each parameter that a device has over "data" once; what else is
  summed is activations of the layers, of at most 32 rows of 16 tokens. Of a
  replicated one each device computes the part of the vocabulary that its
  logits are of, so that matrices of logits are gathered once.
  """
  result = helpers.found_by(on_training_meshes.__file__, tmp_path, kind,
                            *(f"{kind}:{mesh}" for mesh in MESHES))
  for mesh in MESHES:
    assert_same(result[f"{kind}:{mesh}"]["metrics"], result[kind]["metrics"])
  whole, split, replicated = (
      result[f"{kind}:{mesh}"]["exchanged"] for mesh in MESHES)
  assert whole["on a device"] == whole["parameters"]
  assert set(whole) == {"all-reduce", "parameters", "on a device",
                        "state on a device"}
  # And losses, the norm of the gradients, and sums of weights.
  assert 0 <= whole["all-reduce"] - whole["parameters"] <= 10
  assert "all-gather" not in split
  if kind != "fspad":  # It has no matrices of logits, and is replicated.
    assert split["on a device"] < 0.8 * split["parameters"]
  assert split["state on a device"] == pytest.approx(
      3 * split["on a device"], abs=10)
  assert replicated["on a device"] == whole["on a device"]
  assert replicated.get("all-gather", 0) < replicated["parameters"]


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory):
  """A corpus, a target, and an undisturbed run on one device."""
  folder = tmp_path_factory.mktemp("meshes")
  on_training_meshes.save(folder)
  train.train(on_training_meshes.config_of(folder, "plain", "undisturbed"))
  return folder


def start(folder, name, *arguments, devices=8, kind="plain", **changes):
  """Starts the program."""
  config = on_training_meshes.config_of(folder, kind, name)
  config.update(changes)
  settings = folder / f"{name}.py"
  settings.write_text(
      "import ml_collections\n\ndef get_config():\n"
      f"  return ml_collections.ConfigDict({config.to_dict()!r})\n")
  return config, helpers.start("-m", "experiments.train",
                               f"--config={settings}", *arguments,
                               devices=devices)


def wait_for_a_checkpoint(folder, name, *running):
  while not (folder / name / "work" / "checkpoints" / "2").exists():
    assert all(process.poll() is None for process in running), (
        running[0].communicate())
    time.sleep(0.01)


@pytest.mark.long
def test_two_processes_write_texts_and_features(folder):
  one = on_training_meshes.config_of(folder, "own texts", "one")
  train.train(one)
  for process in start_two(folder, "both", kind="own texts"):
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
  names = [folder / x / "work" for x in ("one", "both")]
  assert_same(*map(on_training_meshes.metrics, names))
  for pattern in ("texts/*/*.npy", "features/*/*.npy"):
    files = [sorted(x.glob(pattern)) for x in names]
    assert len(files[0]) == len(files[1]) > 0
    for a, b in zip(*files):
      if pattern.startswith("texts"):
        np.testing.assert_array_equal(np.load(a), np.load(b))
  actual, expected = ((folder / x / "export" / "medusa_lm_head.safetensors")
                      for x in ("both", "one"))
  assert actual.stat().st_size == expected.stat().st_size > 0


def assert_undisturbed(folder, name):
  work = lambda name: on_training_meshes.metrics(folder / name / "work")
  assert_same(work(name), work("undisturbed"))
  actual, expected = (checkpoints.load(folder / x / "export")[1]
                      for x in (name, "undisturbed"))
  for a, b in zip(*map(tiny.jax.tree.leaves, (actual, expected)), strict=True):
    np.testing.assert_allclose(a, b, atol=_OFF)


@pytest.mark.long
def test_killed_on_a_mesh_and_resumed_on_one_device(folder):
  config, process = start(folder, "killed", "--mesh=data:4,model:2")
  try:
    wait_for_a_checkpoint(folder, "killed", process)
  finally:
    process.send_signal(signal.SIGKILL)
    process.wait()
  train.train(config)
  assert_undisturbed(folder, "killed")


def start_two(folder, name, **changes):
  """Two processes of four devices each."""
  where = helpers.free_address()
  return [start(folder, name, "--mesh=data:4,model:2", f"--coordinator={where}",
                "--num_processes=2", f"--process_id={i}", devices=4,
                **changes)[1]
          for i in range(2)]


@pytest.mark.long
def test_two_processes_are_killed_and_resume(folder):
  running = start_two(folder, "two")
  try:
    wait_for_a_checkpoint(folder, "two", *running)
  finally:
    for process in running:
      process.kill()
      process.communicate()
  running = start_two(folder, "two")
  (output, errors), (others, more) = (p.communicate() for p in running)
  assert [p.returncode for p in running] == [0, 0], errors + more
  assert "held_out_loss" in output and "held_out_loss" not in others
  # One of them has the bar.
  assert "step/s" in errors and "step/s" not in more
  assert_undisturbed(folder, "two")


@pytest.mark.long
def test_sigterm_of_one_process_ends_both(folder):
  running = start_two(folder, "stopped", steps=100_000)
  wait_for_a_checkpoint(folder, "stopped", *running)
  running[1].terminate()
  for process in running:
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert errors.splitlines()[-1] == "stopped; resume with the same command."
  saved = folder / "stopped" / "work" / "checkpoints"
  assert max(int(x.name) for x in saved.iterdir()) % train.AGREED == 0


@pytest.mark.parametrize("value, changes, message", [
    ("data:3", {}, "--mesh=data:3: data:3 does not divide the 8 rows of a step,"
     " --config.batch_tokens=128 over --config.windows=(16,). 144 tokens can "
     "be divided."),
    ("data:4", {"windows": (16, 48)}, "data:4 does not divide the 8 or 2 rows "
     "of a step, --config.batch_tokens=128 over --config.windows=(16, 48). 192 "
     "tokens"),
    ("data:8", {"sample_fraction": 0.5, "sample_batch": 12},
     "data:8 does not divide 12 texts that the teacher writes together"),
])
def test_rows_that_a_mesh_does_not_divide(folder, value, changes, message):
  config = on_training_meshes.config_of(folder, "plain", "bad")
  config.update(changes)
  with pytest.raises(ValueError) as error:
    on_mesh.check_rows(config, value, mesh_shapes.axes(value)[0])
  assert message in str(error.value)


@pytest.mark.long
def test_processes_must_share_the_folder(tmp_path):
  """Each has another folder of that name: here, another working directory."""
  where = helpers.free_address()
  code = ("import os, sys\nfrom experiments.app import multihost\n"
          "os.makedirs(sys.argv[1], exist_ok=True)\nos.chdir(sys.argv[1])\n"
          "multihost.join(sys.argv[2], 2, int(sys.argv[3]))\n"
          "multihost.check_shared(sys.argv[4], '--here')\n"
          "try:\n  multihost.check_shared('work', '--config.workdir')\n"
          "except ValueError as e:\n  print(e)\nmultihost.end(0)")
  running = [helpers.start("-c", code, tmp_path / str(i), where, i,
                           tmp_path / "all") for i in range(2)]
  for process in running:
    output, errors = process.communicate(timeout=120)
    assert "--config.workdir=work: process 1 does not see this folder" in (
        output), errors
  assert not list((tmp_path / "all").iterdir())


@pytest.mark.cases(1)
@pytest.mark.parametrize("arguments, message", [
    (["--mesh=model:3"], "--mesh=model:3: model:3 does not divide num_heads=2"),
    (["--mesh=data:16"], "--mesh=data:16: data:16 does not divide the 8 rows"),
    (["--mesh=data:1,model:2", "--draft_mesh=both"], "--draft_mesh"),
])
def test_a_bad_mesh_is_one_line(folder, arguments, message):
  _, process = start(folder, "bad", *arguments)
  output, errors = process.communicate(timeout=120)
  assert (process.returncode, output) == (2, "")
  assert message in errors and errors.count("\n") == 1


def test_a_drafter_that_cannot_be_split():
  config = tiny.LLAMA
  assert mesh_shapes.split_size(config, 2) == 2
  assert mesh_shapes.split_size(config, 8) == 1
  assert mesh_shapes.draft_size("replicated", config, 2) == 1
  with pytest.raises(ValueError, match=re.escape(
      "--draft_mesh=split: model:8 does not divide num_heads=4")):
    mesh_shapes.draft_size("split", config, 8)


def test_the_drafter_of_llama_2(monkeypatch):
  """Of the paper's sizes; its steps can be divided by up to 64."""
  config = configs.get_config("llama2_draft")
  monkeypatch.setattr(checkpoints, "architecture", None)
  got = training_run.architecture(config)
  assert (got.num_layers, got.dim, got.hidden_dim, got.num_heads) == (
      4, 1024, 2816, 8)
  assert on_mesh.row_divisor(config) == 64
