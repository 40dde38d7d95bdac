"""Tests of `experiments.studies.scaling` on a tiny target."""

import json

import numpy as np
import pytest

from configs import scaling as configs
from experiments.app import launch, text_tables
from experiments.data import python_corpus
from experiments.studies import scaling
from experiments.training import run as training_run
from models import checkpoints


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
  points = {(name, tokens): scaling.of_point(config, name, tokens, workdir)
            for tokens in config.tokens for name in config.drafters}
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
def test_the_program(python, config, tmp_path):
  file, config.tokens = tmp_path / "config.py", (64,)
  file.write_text(f"""
import json
import ml_collections
def get_config():
  return ml_collections.ConfigDict(json.loads({config.to_json()!r}))
""")
  got = python("-m", "experiments.studies.scaling", f"--config={file}",
               f"--workdir={tmp_path / 'run'}")
  assert got.status == 0, got.errors
  assert got.output.startswith("overlap  parameters  64 tokens")
  for name in ("summary.md", "run.json", "drafters/d4x1-64/config.json"):
    assert (tmp_path / "run" / name).stat().st_size
  text = (tmp_path / "run" / "summary.md").read_text()
  assert f"- Models: target={config.training.teacher}." in text


def test_each_training_has_a_schedule_of_its_own(config, tmp_path):
  results = [scaling.of_point(config, "d8x1", tokens, tmp_path)
             for tokens in (320, 640)]
  assert [(x.steps, x.warmup_steps) for x in results] == [(10, 1), (20, 2)]
  assert results[0].sizes.dim == 8 and results[0].export != results[1].export
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


def _records():
  """Overlap by known constants; at 1 the same, in calls of 16 prompts."""
  calls, records = [10 + i % 3 for i in range(16)], []
  for size in (1000, 10_000, 40_000):
    for tokens in (2**15, 2**16, 2**17):
      overlap = -0.3 + 0.05 * np.log10(size) + 0.1 * np.log10(tokens)
      emitted = [round((1 + overlap) * 1000 * x) for x in calls]
      records.append({
          "drafter": f"d{size}", "parameters": size, "tokens": tokens,
          "overlap": overlap, "decoded": [
              {"temperature": 1.0, "target_calls": calls, "emitted": emitted}]})
  return records


def test_constants_are_recovered():
  """Those of one variable are of the largest other one."""
  fits = scaling.fits(scaling.measured(_records()))
  both = fits["overlap"]["parameters and tokens"]
  np.testing.assert_allclose([both.constant, *both.slopes], [-0.3, 0.05, 0.1],
                             atol=1e-12)
  assert both.r2 == pytest.approx(1)
  tokens = fits["overlap"]["tokens, 40,000 parameters"]
  assert tokens.slopes == pytest.approx((0.1,))
  assert tokens.constant == pytest.approx(-0.3 + 0.05 * np.log10(40_000))
  assert fits["overlap"]["parameters, 131,072 tokens"].slopes == (
      pytest.approx((0.05,)))
  # A thousand tokens for each call and unit of 1 + overlap.
  decoded = fits["T = 1"]["parameters and tokens"]
  np.testing.assert_allclose([decoded.constant, *decoded.slopes],
                             [700, 50, 100], atol=0.5)


def test_noise_and_equal_values_are_not_explained():
  noise = np.random.default_rng(0).normal(size=200)
  assert abs(scaling.fit([np.geomspace(1, 1e4, 200)], noise).r2) < 0.05
  assert np.isnan(scaling.fit([[1, 10, 100]], [2, 2, 2]).r2)


def test_tables_of_a_study_that_is_not_complete():
  text = text_tables.render(scaling.tables(_records()[:-1]),
                            text_tables.markdown)
  assert "| overlap | parameters | 32,768 tokens | 65,536 tokens |" in text
  assert "| d1000 | 1,000 | 0.302 | 0.332 | 0.362 |" in text
  assert next(x for x in text.splitlines() if x.startswith("| d40000")
              ).endswith("| - |")
  assert "| overlap | parameters and tokens | -0.300 | +0.050, +0.100 |" in text
  assert "nan" not in text and "None" not in text
