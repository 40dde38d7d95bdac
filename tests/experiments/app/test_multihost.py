"""Several processes as one program: results, deaths, and SIGTERM."""

import dataclasses
import json
import os
import runpy
import signal
import time

import jax
import numpy as np
import pytest

from experiments.app import multihost, preemption
from experiments.data import prompt_tasks
from experiments.evaluation import method_grid, tree_cells
from experiments.harness import store as results_store
from models import checkpoints, transformer
from models.text import tokenizers
from support import helpers, on_processes, tiny_models as tiny

_CONFIG = '''
from configs import rsd
def get_config():
  config = rsd.get_config("smoke")
  config.update(target={target!r}, draft={draft!r}, prompts=5, batch=4,
                prompt_length=4, max_new_tokens=6, lengths=(1,), budgets=(),
                task="text", data={text!r})
  config.trees.length = {{"1": ({{"name": "rsd_s", "width": 2, "depth": 1}},)}}
  return config
'''
# What one and two processes have alike, be their last batches filled up
# otherwise.
_ALIKE = ("method", "emitted", "target_calls", "accepted_by_depth",
          "tested_by_rank")


@pytest.fixture(name="config", scope="module")
def _config(tmp_path_factory):
  """A file of settings; the models can be split over two devices."""
  folder = tmp_path_factory.mktemp("processes")
  config = transformer.Config(
      vocab_size=264, dim=8, num_layers=1, num_heads=2, num_kv_heads=2,
      head_dim=4, hidden_dim=8, max_length=32)
  tokenizer = tokenizers.train(["import os\n\ndef main(): pass\n"], 264)
  for name, scan in (("target", False), ("draft", True)):
    config = dataclasses.replace(config, scan_layers=scan)
    checkpoints.save(folder / name, config,
                     tiny.random_model(config).params, tokenizer)
  path = folder / "config.py"
  text = folder / "text.json"
  text.write_text(json.dumps([f"{i} is the number {i}, and so on" * 2
                              for i in range(40)]))
  path.write_text(_CONFIG.format(target=str(folder / "target"), text=str(text),
                                 draft=str(folder / "draft")))
  return path


def start(config, workdir, *arguments, devices=1):
  return helpers.start("-m", "experiments.rsd", f"--config={config}",
                       f"--workdir={workdir}", *arguments, devices=devices)


def start_two(config, workdir):
  """Two processes of four devices each, rows and heads by two."""
  where = helpers.free_address()
  return [start(config, workdir, "--mesh=data:4,model:2",
                f"--coordinator={where}", "--num_processes=2",
                f"--process_id={i}", devices=4) for i in range(2)]


def wait_for_a_result(workdir, *running):
  """Returns as soon as one line of results is there."""
  path = workdir / results_store.RESULTS
  while not (path.exists() and path.read_text().endswith("\n")):
    assert all(process.poll() is None for process in running), (
        running[0].communicate())
    time.sleep(0.05)
  return path.read_text()


def alone(config, path):
  """Records of the same settings from one process and one device."""
  settings = runpy.run_path(str(config))["get_config"]()
  pair = helpers.load_pair(settings.target, settings.draft)
  methods, _ = method_grid.from_config(settings)
  return tree_cells.measure(settings, pair, methods, prompt_tasks.load(
      settings, pair), path)


@pytest.mark.long
def test_two_processes_are_killed_and_resume(config, tmp_path):
  workdir = tmp_path / "run"
  running = start_two(config, workdir)
  first = wait_for_a_result(workdir, *running)
  running[1].kill()
  _, errors = running[0].communicate(timeout=60)
  assert running[0].returncode == 1
  assert errors.splitlines()[-1].startswith("rsd: error: process 0 of 2: an")
  assert "stack trace" not in errors

  running = start_two(config, workdir)
  (output, errors), (others, more) = (p.communicate() for p in running)
  assert [p.returncode for p in running] == [0, 0], errors + more
  assert "Fixed draft length" in output and "Fixed" not in others
  content = (workdir / results_store.RESULTS).read_text()
  assert content.startswith(first)
  actual = [json.loads(line) for line in content.splitlines()]
  expected = alone(config, tmp_path / "alone.jsonl")
  assert len(actual) == len(expected) == 2
  for a, b in zip(actual, expected):
    assert {k: a[k] for k in _ALIKE} == {k: b[k] for k in _ALIKE}
    # Of random models: other tokens would have another probability.
    assert a["log_prob"] == pytest.approx(b["log_prob"], abs=1e-4)
    assert len(set(a["log_prob"])) == 5


def test_a_checkpoint_is_saved_by_two_processes(config, tmp_path):
  """Neither has all of it; one writes what is no array."""
  out, where = tmp_path / "saved", helpers.free_address()
  # An older folder, which is replaced.
  checkpoints.save(out, tiny.LLAMA, tiny.random_model(tiny.LLAMA).params)
  running = [helpers.start(on_processes.__file__, config.parent / "draft", out,
                           where, 2, i, devices=2) for i in range(2)]
  for process in running:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert output.splitlines()[-1] == "the same"
  assert json.loads((out / checkpoints.METADATA).read_text()) == {
      "processes": 2}
  lm, params = checkpoints.load(out)
  assert lm.vocab_size == 264
  jax.tree.map(np.testing.assert_array_equal, params,
               checkpoints.load(config.parent / "draft")[1])


def test_sigterm_ends_a_run_in_peace(config, tmp_path):
  process = start(config, tmp_path / "run")
  first = wait_for_a_result(tmp_path / "run", process)
  process.terminate()
  _, errors = process.communicate(timeout=60)
  assert process.returncode == 0, errors
  assert errors.splitlines()[-1] == "stopped; resume with the same command."
  path = tmp_path / "run" / results_store.RESULTS
  assert path.read_text().startswith(first)
  assert results_store.read(path)


@pytest.mark.usefixtures("listening")
def test_sigterm_waits_for_what_is_held():
  done = []
  with pytest.raises(preemption.Stopped):
    with preemption.defer_signals():
      with preemption.defer_signals():
        os.kill(os.getpid(), signal.SIGTERM)
        done.append(preemption.stop_requested())
      done.append("both")
    done.append("neither")
  assert done == [True, "both"]


@pytest.mark.usefixtures("listening")
def test_sigterm_while_a_result_is_written(tmp_path, monkeypatch):
  fsync = os.fsync

  def signalled(descriptor):
    os.kill(os.getpid(), signal.SIGTERM)
    fsync(descriptor)

  monkeypatch.setattr(os, "fsync", signalled)
  with pytest.raises(preemption.Stopped):
    results_store.append(tmp_path / "results.jsonl", {"cell": 1})
  assert results_store.read(tmp_path / "results.jsonl") == [{"cell": 1}]


def joining(where, number, seconds):
  """A process that joins, says so, and then waits for its end."""
  code = ("import time\nfrom experiments.app import multihost\n"
          f"multihost._JOIN_SECONDS = {seconds}\n"
          f"multihost.join({where!r}, 2, {number})\n"
          "print('joined', flush=True)\ntime.sleep(60)")
  return helpers.start("-c", code)


@pytest.mark.cases(1)
@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_waits_in_vain_says_so(number):
  where = helpers.free_address()
  process = joining(where, number, seconds=2)
  output, errors = process.communicate(timeout=60)
  assert (process.returncode, output) == (1, "")
  assert len(errors.splitlines()) == 1
  assert (f"error: process {number} of 2: not all processes have met at "
          f"--coordinator={where} within 2 s") in errors


def test_a_killed_coordinator_is_one_line():
  where = helpers.free_address()
  running = [joining(where, i, seconds=50) for i in range(2)]
  assert running[1].stdout.readline().startswith("Process 1 of 2: the first ")
  assert running[1].stdout.readline() == "joined\n"
  running[0].kill()
  running[0].communicate()
  _, errors = running[1].communicate(timeout=60)
  assert running[1].returncode == 1
  assert len(errors.splitlines()) == 1
  assert "error: process 1 of 2: another process has ended" in errors


def test_flags_of_processes_belong_together():
  for value in "", "localhost", "localhost:", "http://a:1":
    for others in (None, None), (1, None), (2, 0):
      with pytest.raises(ValueError, match=f"^--coordinator={value}: address "):
        multihost.join(value, *others)
  for arguments in (("localhost:1", None, None), ("localhost:1", 2, None),
                    (None, None, 0)):
    with pytest.raises(ValueError, match="all three are needed"):
      multihost.join(*arguments)


def test_one_process_joins_nobody():
  multihost.join(num_processes=1)
  assert not jax.distributed.is_initialized()
  assert multihost.first()
  assert multihost.from_first(lambda: {"a": [1]}) == {"a": [1]}
