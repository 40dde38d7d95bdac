"""The programs of LLM-to-SLM and LUD on untrained models."""

import numpy as np
import pytest

from configs import train as configs
from experiments.training import losses, run as training_run
from experiments.studies import prompt_vectors
from models import transformer


@pytest.fixture(name="sizes", autouse=True)
def _sizes(monkeypatch):
  monkeypatch.setattr(prompt_vectors, "PROMPT", 6)
  monkeypatch.setattr(prompt_vectors, "_NEW", 8)


def prepare(name, folders, tmp_path, start):
  target, _ = folders
  config = configs.get_config(name)
  config.update(
      preset="", teacher=target, tokenizer=target, start=start,
      sizes={"dim": 8, "num_layers": 1, "num_heads": 1, "head_dim": 4,
             "hidden_dim": 8},
      workdir=str(tmp_path / "work"), export=str(tmp_path / "export"),
      windows=(16,), batch_tokens=64, steps=6, warmup_steps=1,
      learning_rate=.05, matrix_learning_rate=.05)
  training_run.check(config)
  run = training_run.prepare(config)
  return config, run, run.data.held_out(4)


@pytest.mark.long
def test_readers_are_compared_after_the_prompt(folders, tmp_path):
  config, run, batch = prepare("llm_to_slm", folders, tmp_path, folders[1])
  head, small, more, reader = prompt_vectors.compare_readers(
      config, run, batch)
  student, teacher = (
      transformer.causal_logits(transformer.language_model(run.architecture),
                                params, batch.tokens[:, :-1])[:, 5:]
      for params in (run.start, run.teacher_params))
  expected = losses.cross_entropy(student, batch.tokens[:, 6:])
  assert len(head) == 5 and small[0] == "small"
  assert small[1] == f"{expected:.3f}"
  assert small[2] == f"{1 - losses.total_variation(teacher, student):.3f}"
  # Both have learned, and not the same.
  assert small[1] != more[1] != reader[1]


@pytest.mark.long
def test_thresholds_are_compared(folders, tmp_path):
  config, run, batch = prepare("lud", folders, tmp_path, folders[0])
  head, plain, *lines = prompt_vectors.tune_for_pads(config, run,
                                                     batch)
  assert head[2] == "tokens a call" and plain[4] == "100"
  rates = [float(line[2].split()[0]) for line in lines]
  # Plain decoding, exact verification, then thresholds from high to low.
  assert rates[0] == 1 and list(np.sort(rates[2:])) == rates[2:]
