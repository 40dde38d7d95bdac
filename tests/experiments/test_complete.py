"""Tests of `experiments.complete`: all prompts of a file, and going on."""

import json
import os
import signal

from absl.testing import flagsaver
import pytest

import decoding_jax as dj
from experiments import complete
from experiments.app import launch, method_specs, multihost, preemption
from experiments.devices import mesh, mesh_shapes
from experiments.harness import store as results_store
from experiments.timing import auto_method
from support import helpers

# No text depends on the number of prompts of a width, on batches and rows.
_PROMPTS = ["import os", "def f", "import sys", "class A", "x = 1"]
_TOO_LONG = "a b c d e f g h i j k l m n o p q r s t u v w x y z"


def _complete(python, folders, tmp_path, *more):
  return python("-m", "experiments.complete", f"--target={folders[0]}",
                f"--prompts={tmp_path / 'prompts.txt'}",
                f"--workdir={tmp_path / 'run'}", *more)


def test_texts_are_written_once_whatever_the_batch(python, folders, tmp_path):
  prompts, workdir = tmp_path / "prompts.txt", tmp_path / "run"
  complete_ = lambda *more: _complete(
      python, folders, tmp_path, f"--draft={folders[1]}",
      "--method=rsd_s(2, 1)", "--max_new_tokens=6", "--num_samples=2",
      "--check_exact",
      f"--compilation_cache={workdir}/compiled", *more)
  prompts.write_text("\n".join([*_PROMPTS[:2], _TOO_LONG, *_PROMPTS[2:]]))
  path = workdir / "results.jsonl"
  got = complete_("--batch=4", f"--profile={tmp_path}")
  assert got.status == 0, got.errors
  assert got.output.startswith("rsd_s(2x1): 10 texts, ")
  assert "2 too_long. Decoded on cpu." in got.output
  assert "2 tests of texts agree with the target's distribution" in got.output
  assert "\nverify " in (tmp_path / "rsd_s(2x1)/profile.md").read_text()
  first = [json.loads(line) for line in path.read_text().splitlines()]
  by_name = {(r["prompt"], r["sample"]): r for r in first}
  assert sorted(by_name) == [(i, j) for i in range(6) for j in range(2)]
  assert len(first) == 12
  for (i, _), record in by_name.items():
    assert (record["finish"] == "too_long") == (i == 2)
    if i != 2:
      assert 0 < record["tokens"] <= 6 and record["log_prob"] < 0
      assert (record["finish"] == "length") <= (record["tokens"] == 6)
  assert by_name[0, 0]["text"] != by_name[0, 1]["text"]

  # Half of it is done again, other rows together; lines that are there twice,
  # or of no prompt, count for nothing.
  lines = path.read_text().splitlines(True)[:6]
  wrong = [f'{{"prompt": {x}, "sample": 0, "finish": "stop", "tokens": 1}}\n'
           for x in ("[1]", "99")]
  path.write_text("".join([*lines, lines[0], *wrong]))
  got = complete_("--batch=2", "--queue=3", "--buckets=1")
  assert got.status == 0, got.errors
  second = [json.loads(line) for line in path.read_text().splitlines()]
  assert got.output.startswith("rsd_s(2x1): 10 texts, ") and len(second) == 15
  for record in [*second[:6], *second[9:]]:
    expected = by_name[record["prompt"], record["sample"]]
    assert record["text"] == expected["text"]
    assert record["finish"] == expected["finish"]

  got = complete_("--seed=1")
  assert got.status == 2 and "seed=0, not of 1" in got.errors


def test_texts_that_are_no_samples_are_an_error(capsys):
  """Records of an earlier start count, those without a text do not."""
  record = lambda log_prob: {"check_exact": {
      "tokens": 100.0, "impossible": 1.0, "log_prob": log_prob,
      "log_prob_variance": 9.0, "most_probable": 0.0,
      "most_probable_variance": 0.0}}
  method = dj.methods.autoregressive()
  complete._test(method, [record(9.0), record(-6.0), {"tokens": 0}])
  assert "agree with the target's" in capsys.readouterr().out
  with pytest.raises(launch.UserError, match=r"200 tokens, log-.* \+0.1000"):
    complete._test(method, [record(9.0), record(11.0), {"tokens": 0}])


def test_no_draft_model_is_asked_for(python, folders, tmp_path):
  (tmp_path / "prompts.txt").write_text("\n".join(_PROMPTS[:3]))
  got = _complete(python, folders, tmp_path, "--method=suffix(4, 2)",
                  "--max_new_tokens=4", "--batch=2", "--compilation_cache=")
  assert got.status == 0, got.errors
  assert got.output.startswith("suffix(4x2, ") and ": 3 texts, " in got.output


@pytest.mark.usefixtures("listening", "parsed_flags")
@pytest.mark.parametrize("several", [False, True])
def test_a_batch_that_is_there_is_kept(folders, tmp_path, monkeypatch, several):
  """SIGTERM comes while the first of two is decoded, to one process or more."""
  pair = helpers.load_pair(*folders)
  module, name = (mesh, "_generate") if several else (dj, "generate")
  decode, asked = getattr(module, name), []

  def decode_and_stop(*args, **kwargs):
    out = decode(*args, **kwargs)
    asked.append(True)
    if not several:
      os.kill(os.getpid(), signal.SIGTERM)
    return out

  def stop_together():
    if asked:
      raise preemption.Stopped

  monkeypatch.setattr(module, name, decode_and_stop)
  if several:
    pair = mesh.with_params(pair, mesh_shapes.make((1, 1)))
    monkeypatch.setattr(multihost, "stop_together", stop_together)
  path = tmp_path / "results.jsonl"
  with flagsaver.flagsaver(batch=2, max_new_tokens=4), (
      pytest.raises(preemption.Stopped)):
    complete.complete(dj.methods.autoregressive(), pair, [[1, 2]] * 4, 9, 2,
                      path)
  assert [json.loads(line)["prompt"]
          for line in path.read_text().splitlines()] == [0, 1]


@pytest.mark.usefixtures("parsed_flags")
def test_auto_chooses_once_for_the_rows_of_a_batch(tmp_path, monkeypatch):
  """From padded prompts; a later start goes on with what was chosen."""
  seen = []

  def choose(pair, prompts, lengths, budget, sampling, batch, memory_budget):
    del pair, sampling, memory_budget
    seen.append((prompts.tolist(), lengths.tolist(), budget, batch))
    return auto_method.Choice(None, "rsd_c((2, 1))", "why")

  monkeypatch.setattr(auto_method, "choose", choose)
  with flagsaver.flagsaver(batch=3, max_new_tokens=4, workdir=str(tmp_path)):
    spec = complete._chosen(None, [[1, 2], [3]])
    assert seen == [([[1, 2], [3, 0]], [2, 1], 4, 3)]
    results_store.save(tmp_path / complete._CHOSEN, spec)
    again = complete._chosen(None, [[1, 2], [3]])
    assert complete._chosen(None, []) == again and len(seen) == 1
  assert method_specs.read(again).name == method_specs.read(spec).name
