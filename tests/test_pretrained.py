"""The shipped pair is what it is said to be."""

import json
import pathlib

import pytest

from experiments import batches
from experiments import corpus
from experiments import trainer
import models
from models import checkpoints
from models import presets
from models import tokenizers
from models import transformer

PRETRAINED = pathlib.Path(models.__file__).parent / "pretrained"
NAMES = ("python-target", "python-draft")


@pytest.fixture(name="pair", scope="module")
def _pair():
  return [checkpoints.load(PRETRAINED / name) for name in NAMES]


def _metadata(name):
  return json.loads((PRETRAINED / name / checkpoints.METADATA).read_text())


@pytest.mark.parametrize("name", NAMES)
def test_architecture_is_the_preset(name):
  config = checkpoints.load_config(PRETRAINED / name)
  assert config == presets.PRESETS[name]


def test_sizes(pair):
  target, draft = (transformer.num_params(params) for _, params in pair)
  assert target == _metadata(NAMES[0])["parameters"] > 3e6
  assert draft == _metadata(NAMES[1])["parameters"] < 4e5
  size = sum(path.stat().st_size for path in PRETRAINED.rglob("*"))
  assert size < 24e6


def test_one_tokenizer():
  target, draft = (tokenizers.load(PRETRAINED / name) for name in NAMES)
  assert target.to_str() == draft.to_str()
  assert target.get_vocab_size() == 2000


def test_metadata():
  target, draft = (_metadata(name) for name in NAMES)
  assert target["held_out_loss"] < draft["held_out_loss"] - 0.2
  assert draft["overlap"] >= 0.65


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
