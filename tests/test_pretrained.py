"""The shipped models are what they are said to be."""

import json
import pathlib

import jax.numpy as jnp
import pytest

from experiments import batches
from experiments import corpus
from experiments import trainer
import models
from models import checkpoints
from models import presets
from models import reward as reward_lib
from models import tokenizers
from models import transformer

PRETRAINED = pathlib.Path(models.__file__).parent / "pretrained"
NAMES = ("python-target", "python-draft")


@pytest.fixture(name="pair", scope="module")
def _pair():
  return [checkpoints.load(PRETRAINED / name) for name in NAMES]


def _metadata(name):
  return json.loads((PRETRAINED / name / checkpoints.METADATA).read_text())


@pytest.mark.parametrize(
    "folder", [path for path in PRETRAINED.iterdir() if path.is_dir()],
    ids=lambda path: path.name)
def test_architecture_is_the_preset(folder):
  config = checkpoints.load_config(folder)
  assert config == presets.PRESETS[folder.name]
  metadata = _metadata(folder.name)
  assert metadata["config"]["preset"] == folder.name
  assert not any(str(value).startswith("/")
                 for value in metadata["config"].values())


def test_all_of_it_is_small():
  size = sum(path.stat().st_size for path in PRETRAINED.rglob("*"))
  assert size < 24e6


def test_a_pair(pair):
  target, draft = (transformer.num_params(params) for _, params in pair)
  made_of = list(map(_metadata, NAMES))
  assert target == made_of[0]["parameters"] >= 3e6
  assert draft == made_of[1]["parameters"] <= 4e5
  assert made_of[0]["held_out_loss"] < made_of[1]["held_out_loss"] - 0.2
  assert made_of[1]["overlap"] >= 0.65
  encoders = [tokenizers.load(PRETRAINED / name) for name in NAMES]
  assert encoders[0].to_str() == encoders[1].to_str()
  assert encoders[0].get_vocab_size() == 2000


def test_the_reward_model():
  metadata = _metadata("harmless-reward")
  assert metadata["accuracy"] > 0.55
  lm, params = checkpoints.load(PRETRAINED / "harmless-reward")
  tokens = tokenizers.load(PRETRAINED / "harmless-reward").encode(
      "\n\nHuman: hello\n\nAssistant: hello").ids
  reward = reward_lib.reward(lm, 64)
  state = reward.init(params, None, jnp.array(tokens), len(tokens))
  assert abs(float(reward.value(params, None, state))) < 10


def test_overlap_on_held_out_text(pair):
  """A few windows; another Python has other modules, hence the margins."""
  (target, target_params), (draft, draft_params) = pair
  tokens = corpus.encode(tokenizers.load(PRETRAINED / NAMES[0]),
                         corpus.HELD_OUT)
  metrics = trainer.evaluate(
      trainer.evaluator(draft, target), draft_params,
      batches.whole(batches.even_windows(tokens, 8, 256)), target_params)
  assert metrics["overlap"] > 0.6
  assert metrics["teacher_loss"] < min(3.3, metrics["held_out_loss"])
