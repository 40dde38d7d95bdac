"""Tests of `experiments.studies.scaling` on a tiny target."""

import numpy as np
import pytest

from configs import train as configs
from experiments.app import text_tables
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
  config = configs.get_config("scaling")
  config.update(teacher=folders[0], tokenizer="", corpus=str(source),
                windows=(16,), batch_tokens=32, eval_windows=4)
  return config


def test_each_training_has_a_schedule_of_its_own(config, tmp_path):
  results = [scaling.training(config, (8, 1), tokens, tmp_path)
             for tokens in (320, 640)]
  assert [(x.steps, x.warmup_steps) for x in results] == [(10, 1), (20, 2)]
  assert results[0].sizes.dim == 8 and results[0].export != results[1].export
  assert not config.steps == 10


def test_a_drafter_is_trained_and_decodes(config, tmp_path, monkeypatch):
  monkeypatch.setattr(scaling, "_PROMPT_LENGTH", 4)
  monkeypatch.setattr(scaling, "_NEW", 6)
  point = scaling.training(config, (8, 1), 128, tmp_path)
  training_run.check(point)
  record = scaling.measure(point, training_run.prepare(point))
  assert 0 < record["overlap"] < 1
  rate, low, high = record["tokens a call"]
  assert 1 <= low <= rate <= high <= 5
  vocab_size = checkpoints.architecture(config.teacher).vocab_size
  sizes = training_run.architecture(point)
  assert (sizes.dim, sizes.vocab_size) == (8, vocab_size)
  # A layer's four matrices of attention, three of the other part, and norms.
  assert record["parameters"] == 4 * 8 * 8 + 3 * 8 * 16 + 3 * 8


def _records():
  """Overlap by known constants."""
  return [{"parameters": size, "tokens": tokens, "overlap": -0.3 + 0.05 *
           np.log10(size) + 0.1 * np.log10(tokens), "tokens a call":
           [size / tokens, 1.4, 1.6]}
          for size in (1000, 10_000, 40_000)
          for tokens in (2**15, 2**16, 2**17)]


def test_constants_are_recovered():
  records = _records()
  constants = scaling.fit(records, np.array([r["overlap"] for r in records]))
  np.testing.assert_allclose(constants, [-0.3, 0.05, 0.1, 1], atol=1e-12)


def test_noise_is_not_explained():
  noise = np.random.default_rng(0).normal(size=9)
  assert scaling.fit(_records(), noise)[-1] < 0.5


def test_tables_of_a_study_that_is_not_complete():
  text = text_tables.render(scaling.tables(_records()[:-1]),
                            text_tables.markdown)
  assert "| overlap, parameters | 32768 | 65536 | 131072 |" in text
  assert "| 1,000 | 0.30 | 0.33 | 0.36 |" in text
  assert "| 40,000 | 0.38 | 0.41 | - |" in text
  assert ("-0.300, +0.050 log10 parameters, +0.100 log10 tokens, R^2 1.000"
          in text)
