"""Tests of `experiments.scaling` on a tiny target."""

import json

import pytest

from configs import scaling as configs
from experiments import scaling
from experiments.app import launch
from experiments.data import python_corpus
from experiments.training import run as training_run
from models import checkpoints
from support import helpers


@pytest.fixture(name="config")
def _config(folders, tmp_path):
  source = tmp_path / "source"
  source.mkdir()
  for split in (python_corpus.TRAIN, python_corpus.HELD_OUT):
    name = next(f"m{i}" for i in range(1000)
                if python_corpus.split_of(f"m{i}") == split)
    (source / f"{name}.py").write_text("def f(x):\n  return x + 1\n" * 40)
  config = configs.get_config("smoke")
  config.training.update(
      teacher=folders[0], tokenizer="", corpus=str(source), windows=(16,),
      batch_tokens=32, eval_windows=4)
  config.update(tokens=(64, 128), prompts=3, prompt_length=4, max_new_tokens=6,
                method="speculative(2)")
  config.drafters = {f"d{dim}x1": {"dim": dim, "num_layers": 1, "num_heads": 1}
                     for dim in (4, 8)}
  return config


def _measured(config, workdir):
  method = scaling.check(config)
  points = {place: scaling.of_point(config, *place, workdir)
            for place in scaling.places(config)}
  for point in points.values():
    training_run.check(point)
  return scaling.measure(config, method, points,
                         training_run.prepare(points["d8x1", 64]),
                         workdir / "results.jsonl")


@pytest.mark.long
def test_a_study_goes_on_where_it_was(config, tmp_path, monkeypatch):
  """Interrupted as it measures the third drafter; then asked for part of it.

  A drafter is known by its sizes, not by its name.
  """
  workdir, decode, calls = tmp_path / "run", scaling.decode, []
  workdir.mkdir()

  def interrupt(*arguments):
    calls.append(arguments)
    if len(calls) == 3:
      raise KeyboardInterrupt
    return decode(*arguments)

  monkeypatch.setattr(scaling, "decode", interrupt)
  with pytest.raises(KeyboardInterrupt):
    _measured(config, workdir)
  lines = (workdir / "results.jsonl").read_text().splitlines()
  assert [(r["drafter"], r["tokens"]) for r in map(json.loads, lines)] == [
      ("d4x1", 64), ("d8x1", 64)]
  records = _measured(config, workdir)
  assert len(calls) == 5  # Two drafters are not measured again.
  assert records[:2] == [json.loads(line) for line in lines]
  assert [(r["drafter"], r["tokens"]) for r in records] == [
      ("d4x1", 64), ("d8x1", 64), ("d4x1", 128), ("d8x1", 128)]
  for record in records:
    assert 0 < record["overlap"] < 1
    decoded, = record["decoded"]
    assert decoded["emitted"] == [6] * 3
    assert all(2 <= x <= 6 for x in decoded["target_calls"])
    assert scaling.num_params(checkpoints.load_config(
        workdir / "drafters" / f"{record['drafter']}-{record['tokens']}")) == (
            record["parameters"])

  config.drafters = {"d8x1": config.drafters["d4x1"]}
  assert _measured(config, workdir) == records[::2]


@pytest.mark.long
def test_the_program(config, tmp_path):
  file, config.tokens = tmp_path / "config.py", (64,)
  file.write_text(f"""
import json
import ml_collections
def get_config():
  return ml_collections.ConfigDict(json.loads({config.to_json()!r}))
""")
  process = helpers.start(
      "-m", "experiments.scaling", f"--config={file}",
      f"--workdir={tmp_path / 'run'}")
  output, errors = process.communicate()
  assert process.returncode == 0, errors
  assert output.startswith("overlap  parameters  64 tokens")
  for name in ("summary.md", "run.json", "scaling.png", "scaling.pdf",
               "drafters/d4x1-64/config.json"):
    assert (tmp_path / "run" / name).stat().st_size
  text = (tmp_path / "run" / "summary.md").read_text()
  assert f"- Models: target={config.training.teacher}." in text


def test_each_training_has_a_schedule_of_its_own(config, tmp_path):
  found = [scaling.of_point(config, "d8x1", tokens, tmp_path)
           for tokens in (320, 640)]
  assert [(x.steps, x.warmup_steps) for x in found] == [(10, 1), (20, 2)]
  assert found[0].sizes.dim == 8 and found[0].export != found[1].export
  assert not config.training.steps == 10


@pytest.mark.parametrize("update, message", [
    ({"tokens": (63,)}, "--config.tokens=63: at least 64, two steps, are"),
    ({"tokens": ()}, "--config.tokens is empty"),
    ({"warmup": 1.0}, "--config.warmup=1.0: at least 0 and less than 1"),
    ({"prompts": 0}, "--config.prompts=0: at least 1"),
    ({"method": "medusa"}, "--config.method: 'medusa' is no method")])
def test_what_is_no_study_is_refused(config, update, message):
  config.update(update)
  with pytest.raises(launch.UserError, match=message):
    scaling.check(config)
