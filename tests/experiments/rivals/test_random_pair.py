"""Tests of `experiments.random_pair` on a tiny pair."""

import dataclasses

import jax
import ml_collections
import numpy as np
import pytest

from experiments.rivals import random_pair
from models import checkpoints, transformer

SETTINGS = ml_collections.ConfigDict({
    "seed": 0, "overlap": 0.7, "perplexity": 12.0, "core": 6, "vocab_size": 48,
    "max_length": 64, "dtype": "bfloat16",
    "target": {"dim": 24, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1,
               "head_dim": 8, "hidden_dim": 32},
    "draft": {"dim": 16, "num_layers": 1, "num_heads": 1, "num_kv_heads": 1,
              "head_dim": 8, "hidden_dim": 24}})
# Standard error of the overlap of a thousand tokens is less than 0.01.
NOISE = 0.03


@pytest.fixture(scope="module")
def written(tmp_path_factory):
  """The pair's folder, and what was said of it."""
  folder = tmp_path_factory.mktemp("correlated") / "pair"
  return folder, random_pair.write(folder, SETTINGS)


@pytest.fixture(scope="module")
def models(written):
  """(config, parameters) of target and draft in float32, from the folder."""
  folder, _ = written
  return [(dataclasses.replace(checkpoints.architecture(folder / name),
                               dtype="float32"),
           checkpoints.from_hf(folder / name, dtype="float32")[1])
          for name in (random_pair.TARGET, random_pair.DRAFT)]


@pytest.fixture(scope="module")
def texts(models):
  """Texts of the target that nothing was fitted to."""
  config, params = models[0]
  first = np.random.default_rng(99).integers(config.vocab_size, size=(16, 1))
  return random_pair.sample(transformer.language_model(config), params, 99,
                            first.astype(np.int32), 64)


def test_distributions_overlap_as_asked(written, models, texts):
  _, result = written
  assert abs(result["overlap"] - 0.7) <= random_pair.TOLERANCE
  again = random_pair.measure(models, texts)
  assert abs(again["overlap"] - 0.7) < NOISE
  assert 10 < again["perplexity"] < 14
  assert result["settings"] == SETTINGS.to_dict()


def test_measure_in_numpy(models, texts):
  distributions = []
  for config, params in models:
    logits = np.asarray(transformer.causal_logits(
        transformer.language_model(config), params, texts), np.float64)
    distributions.append(np.exp(logits - logits.max(axis=-1, keepdims=True)))
    distributions[-1] /= distributions[-1].sum(axis=-1, keepdims=True)
  target, draft = (x[:, 1:] for x in distributions)
  result = random_pair.measure(models, texts)
  entropy = -(target * np.log(target)).sum(axis=-1).mean()
  assert result["overlap"] == pytest.approx(
      np.minimum(target, draft).sum(axis=-1).mean(), abs=1e-3)
  assert result["perplexity"] == pytest.approx(np.exp(entropy), rel=1e-3)


def test_files_have_the_numbers_that_were_measured(tmp_path, monkeypatch):
  measure, kept = random_pair.measure, []
  monkeypatch.setattr(random_pair, "measure", lambda models_, texts: (
      kept.append(models_), measure(models_, texts))[1])
  random_pair.write(tmp_path / "pair", SETTINGS)
  for name, (_, made) in zip((random_pair.TARGET, random_pair.DRAFT),
                             kept[-1]):
    folder = tmp_path / "pair" / name
    assert checkpoints.architecture(folder).dtype == "bfloat16"
    _, read = checkpoints.from_hf(folder, dtype="float32")
    jax.tree.map(np.testing.assert_array_equal, made, read)


def test_distributions_depend_on_the_context(models, texts):
  # The newest token is the same, another one is not.
  changed = texts.copy()
  changed[:, 0] = (changed[:, 0] + 1) % SETTINGS.vocab_size
  for config, params in models:
    a, b = (np.asarray(transformer.causal_logits(
        transformer.language_model(config), params, x))[:, 3]
        for x in (texts, changed))
    assert np.abs(a - b).max() > 1e-3


def test_the_core_is_the_same_in_both(models):
  (_, target), (_, draft) = models
  core = SETTINGS.core
  for name in ("embedding", "head"):
    np.testing.assert_array_equal(target[name][:, :core],
                                  draft[name][:, :core])
    rest = slice(core, SETTINGS.draft.dim)
    assert not np.allclose(target[name][:, rest], draft[name][:, rest])
  for params in (target, draft):
    for layer in params["layers"].values():
      assert not layer["attention"]["out"]["kernel"][:core].any()
      assert not layer["feed_forward"]["down"]["kernel"][:core].any()


@pytest.mark.long
def test_transformers_reads_the_same_distributions(written, models, texts):
  torch = pytest.importorskip("torch", reason="needs the extra parity")
  transformers = pytest.importorskip("transformers")
  for name, (config, params) in zip(
      (random_pair.TARGET, random_pair.DRAFT), models):
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        written[0] / name, dtype=torch.float32)
    with torch.no_grad():
      expected = theirs(torch.tensor(texts, dtype=torch.long)).logits.numpy()
    ours = transformer.causal_logits(transformer.language_model(config),
                                     params, texts)
    np.testing.assert_allclose(ours, expected, atol=2e-3)


@pytest.mark.parametrize("update, message", [
    ({"overlap": 1.2}, "overlap=1.2: above 0 and below 1"),
    ({"perplexity": 48}, "perplexity=48: above 1 and below vocab_size=48"),
    ({"core": 16}, "core=16: 1 to 15 channels"),
    ({"max_length": 32}, "max_length=32: at least 64"),
])
def test_settings_that_cannot_be(update, message):
  settings = ml_collections.ConfigDict(
      {**SETTINGS.to_dict(), **update}, type_safe=False)
  with pytest.raises(ValueError, match=message):
    random_pair.make(settings)


def test_a_figure_out_of_reach():
  with pytest.raises(ValueError, match="overlap=0.9: these sizes allow 0.2 to "
                     "0.8"):
    random_pair._solve(
        lambda x: 0.8 - 0.6 * x / random_pair._LARGEST_SCALE, 0.9, "overlap")
