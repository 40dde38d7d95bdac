"""Training of masked-diffusion models: the loss, and a run to its end."""

import dataclasses
import json

import jax
import numpy as np
import pytest

from configs import train as configs
import decoding_jax as dj
from experiments import train
from experiments.app import launch
from experiments.data import batches, canvas_tasks
from experiments.training import run as training_run, steps as training_steps
from models import checkpoints, transformer
from models.transformer import presets
from support import tiny_models as tiny


def test_the_loss_is_that_of_masked_places_alone():
  config = transformer.Config(
      vocab_size=7, dim=8, num_layers=1, num_heads=1, num_kv_heads=1,
      head_dim=8, hidden_dim=8, max_length=8)
  lm, params = transformer.language_model(config), tiny.init(
      jax.random.key(0), config)
  tokens = np.array([[1, 2, 3, 4], [5, 4, 3, 2]])
  weights = np.array([[0.5, 0, 0.5], [0, 1, 0]], np.float32)
  result = training_steps.objective(training_steps.MASKED, lm)(
      params, batches.Batch(tokens, weights))
  # Mask 6 in place of what is predicted; each row counts the same.
  logits = np.asarray(transformer.bidirectional_logits(
      lm, params, np.array([[1, 6, 3, 6], [5, 4, 6, 2]])))
  log_probs = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
  rows = [(log_probs[0, 1, 2] + log_probs[0, 3, 4]) / 2, log_probs[1, 2, 3]]
  np.testing.assert_allclose(result, -np.mean(rows), rtol=1e-5)


def _config(tmp_path, **fields):
  config = configs.get_config("canvas_tasks")
  config.update({
      "tokenizer": str(tmp_path / "tokenizer"), "preset": "tiny",
      "workdir": str(tmp_path / "run"), "export": str(tmp_path / "model"),
      "steps": 2, "warmup_steps": 1, "batch_tokens": 72, "eval_every": 2,
      "eval_windows": 8, "compilation_cache": False, **fields})
  return config


def test_from_tasks_to_a_model_that_fills(tmp_path, monkeypatch):
  monkeypatch.setitem(presets.PRESETS, "tiny", dataclasses.replace(
      presets.PRESETS["canvas-tasks"], dim=8, num_layers=1, num_heads=1,
      num_kv_heads=1, head_dim=8, hidden_dim=8))
  monkeypatch.setattr(train.sys, "maxsize", 16)
  metadata = train.train(_config(tmp_path))
  assert 3 < metadata["held_out_loss"] < 6 and metadata["steps"] == 2
  model, params = checkpoints.load_masked(tmp_path / "model")
  assert canvas_tasks.WORDS[model.mask_id] == canvas_tasks.MASK
  out = dj.canvas.generate(
      jax.random.key(0), np.array([canvas_tasks.prompt("copy", [], ["a"])]),
      np.array([canvas_tasks.PROMPT]), method=dj.canvas.methods.static(8),
      model=model, params=params, length=16, block=8)
  assert (np.asarray(out.tokens) != model.mask_id).all()
  assert out.forwards.tolist() == [2]
  assert json.loads((tmp_path / "model" / "metadata.json").read_text())[
      "config"]["masked"]


@pytest.mark.parametrize("fields, message", [
    (dict(preferences="pairs.jsonl"), "on text alone"),
    (dict(canvas_tasks=("paste",)), "'paste' is not one of")])
def test_settings_are_checked(tmp_path, fields, message):
  with pytest.raises((ValueError, launch.UserError), match=message):
    training_run.check(_config(tmp_path, preset="canvas-tasks", **fields))


def test_an_evaluation_waits_for_each_batch():
  """Programs with collectives that run at a time could block each other."""
  log = []

  class Loss:
    def __float__(self):
      log.append("read")
      return 1.0

  def start(*_):
    log.append("start")
    return {"loss": Loss()}

  data = batches.whole(np.zeros((24, 3), np.int32))
  assert training_steps.evaluate(start, None, data) == {"loss": 1.0}
  assert log == ["start", "read"] * 3
