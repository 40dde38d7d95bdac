"""The experiment of decoding on a canvas, from tasks to tables."""

import functools

import jax
import numpy as np
import pytest

from configs import diffusion as configs
import decoding_jax as dj
from experiments import diffusion
from experiments.app import launch
from experiments.data import canvas_tasks
from experiments.evaluation import canvas_cells
from experiments.training import canvas_filter
from models import transformer
from support import tiny_models as tiny


@pytest.fixture(name="decoders", scope="module")
def _decoders():
  config = transformer.Config(
      vocab_size=len(canvas_tasks.WORDS), dim=8, num_layers=1, num_heads=1,
      num_kv_heads=1, head_dim=8, hidden_dim=8, max_length=36)
  params = jax.tree.map(lambda x: 9 * x if x.ndim > 1 else x,
                        tiny.init(jax.random.key(0), config))
  model = dj.canvas.MaskedModel(
      transformer.language_model(config), len(canvas_tasks.WORDS) - 1)
  return functools.partial(canvas_cells.decoder, _config(), model, params)


def _config():
  config = configs.get_config("smoke")
  config.update(examples=24, batch=12, filter_examples=12,
                methods=("static(2)", "free_dave(2, 3)", "learn2pd(0.9)"))
  return config


def test_from_tasks_to_tables(decoders, tmp_path):
  config = _config()
  methods = [canvas_cells.read(spec) for spec in config.methods]
  examples = canvas_tasks.draw(config.canvas_tasks, config.examples, 1)
  path = tmp_path / "results.jsonl"
  measure = lambda: canvas_cells.measure(config, methods, decoders, examples,
                                         path)
  records = measure()
  assert records[0]["tokens"] == records[1]["tokens"]
  assert sum(records[1]["forwards"]) < sum(records[0]["forwards"])
  assert records[0]["metrics"]["forwards_per_token"][0] >= 0.5
  assert all(0 <= low <= value <= high <= 1 for value, low, high in (
      record["metrics"]["accuracy"] for record in records))
  diffusion.write(tmp_path, records, config, "- note")
  text = (tmp_path / "summary.md").read_text()
  assert "static(2)" in text and "first method, tokens / s" in text
  assert (tmp_path / "quality.png").stat().st_size > 1000
  # What has a result is not run again.
  size = path.stat().st_size
  assert (diffusion.tables(measure(), config.canvas_tasks) ==
          diffusion.tables(records, config.canvas_tasks))
  assert path.stat().st_size == size


def test_traces_are_what_a_filter_decides():
  filled = dj.canvas.Filled(
      tokens=np.array([[3, 4, 5, 6]]), lengths=np.array([4]),
      filled_at=np.array([[1, 0, 2, 3]]), forwards=None, whole_forwards=None,
      steps=None, trace=(
          np.arange(16, dtype=np.float32).reshape(1, 4, 4) / 16,
          np.array([[[9, 4, 5, 6], [3, 0, 0, 0], [0, 0, 5, 9], [0] * 4]])))
  data = canvas_filter.traces(filled, 2)
  np.testing.assert_array_equal(
      data.masked, [[1, 1], [1, 0], [1, 1], [0, 1]])
  np.testing.assert_allclose(
      data.confidence, [[0, 1 / 16], [4 / 16, 1], [10 / 16, 11 / 16],
                        [1, 15 / 16]])
  np.testing.assert_array_equal(
      (data.final & data.masked), [[0, 1], [1, 0], [1, 0], [0, 0]])


def test_a_filter_learns_a_threshold():
  rng = np.random.default_rng(0)
  confidence = rng.random((512, 3)).astype(np.float32)
  data = canvas_filter.Traces(confidence, confidence > 0.6,
                              np.ones_like(confidence, bool))
  params, losses = canvas_filter.train(jax.random.key(0), data, 800)
  assert losses[-1] < 0.2 < losses[0]
  logits = dj.canvas.filters.logits(params, np.full((1, 3), 0.9, np.float32))
  assert (logits > 2).all()


@pytest.mark.parametrize("spec, message", [
    ("static(0)", "tokens=0"), ("stat(1)", "'stat' is not one of"),
    ("static(1, 2)", "static takes tokens"), ("static", "static")])
def test_methods_are_checked(spec, message):
  with pytest.raises(launch.UserError, match=message):
    canvas_cells.read(spec)


@pytest.mark.parametrize("field, value, message", [
    ("batch", 7, "--config.batch=7 must divide --config.examples=24"),
    ("block", 5, "--config.block=5 must divide 16"),
    ("canvas_tasks", ("copy", "paste"), "'paste' is not one of"),
    ("methods", (), "must not be empty")])
def test_settings_are_checked(field, value, message):
  config = _config()
  config[field] = value
  with pytest.raises(launch.UserError, match=message):
    diffusion._check(config)
