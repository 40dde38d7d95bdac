"""The shipped models are what they are said to be."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from experiments.app import launch
from experiments.data import batches, canvas_tasks, parallel_text, python_corpus
from experiments.devices import model_pair
from experiments.scoring import task_rewards
from experiments.training import steps as training_steps
from models import checkpoints, transformer
from models.checkpoints import digests
from models.folders import resolve
from models.huggingface import heads
from models.text import tokenizers
from models.transformer import presets, reward_model

PRETRAINED = resolve.PRETRAINED
NAMES = ("python-target", "python-draft")
COMMONGEN = ("commongen-target", "commongen-draft")
HARMLESS = ("harmless-target", "harmless-draft")


def _load(names):
  return [*map(checkpoints.load, names)]


@pytest.fixture(name="pair", scope="module")
def _pair():
  return _load(NAMES)


def _metadata(name):
  return json.loads((PRETRAINED / name / checkpoints.METADATA).read_text())


@pytest.mark.parametrize(
    "folder", [path for path in PRETRAINED.iterdir() if path.is_dir()
               and not heads.is_head(path)], ids=lambda path: path.name)
def test_architecture_is_the_preset(folder):
  config = checkpoints.load_config(folder)
  assert config == presets.PRESETS[folder.name]
  assert digests.read(folder)
  metadata = _metadata(folder.name)
  assert metadata["config"]["preset"] == folder.name
  assert not any(str(value).startswith("/")
                 for value in metadata["config"].values())


@pytest.mark.parametrize("family", ["python", "commongen", "harmless"])
def test_a_pair_is_small(family):
  sizes = [_bytes(PRETRAINED / f"{family}-{name}")
           for name in ("target", "draft")]
  assert 1e6 < sum(sizes) < 15e6


@pytest.mark.parametrize("folder", [
    path for path in PRETRAINED.iterdir() if path.is_dir()
    and not path.name.endswith(("-target", "-draft"))],
                         ids=lambda path: path.name)
def test_a_head_or_another_model_is_small(folder):
  assert 1e5 < _bytes(folder) < 12e6


def _bytes(folder):
  return sum(path.stat().st_size for path in folder.rglob("*")
             if path.is_file())


@pytest.mark.parametrize("names, sizes, better, overlap", [
    (NAMES, (3e6, 4e5), 0.2, 0.65), (COMMONGEN, (5e6, 1e6), 0.3, 0.55),
    (HARMLESS, (1.9e6, 4e5), 0.1, 0.5)],
    ids=["python", "commongen", "harmless"])
def test_a_pair(names, sizes, better, overlap):
  target, draft = (transformer.num_params(params) for _, params in _load(names))
  made_of = list(map(_metadata, names))
  assert target == made_of[0]["parameters"] >= sizes[0]
  assert draft == made_of[1]["parameters"] <= sizes[1]
  assert made_of[0]["held_out_loss"] < made_of[1]["held_out_loss"] - better
  assert made_of[1]["overlap"] >= overlap
  encoders = [*map(tokenizers.load, names)]
  assert encoders[0].to_str() == encoders[1].to_str()
  assert encoders[0].get_vocab_size() == 2000


def test_sentences_have_the_words_of_their_prompts():
  """Greedy sentences; which are another matter for other sets of words."""
  prompts = ("dog grass run", "car road drive", "ball player kick",
             "cake eat girl", "boat lake man", "field horse ride")
  (lm, params), _ = _load(COMMONGEN)
  tokenizer = tokenizers.load(PRETRAINED / COMMONGEN[0])
  rows = [parallel_text.prompt_tokens(tokenizer, prompt) for prompt in prompts]
  lengths = np.array(list(map(len, rows)))
  tokens = np.zeros((len(rows), max(lengths)), np.int32)
  for row, results in zip(tokens, rows):
    row[:len(results)] = results
  out = dj.generate(
      jax.random.key(0), tokens, lengths, method=dj.methods.autoregressive(),
      target=lm, target_params=params, max_new_tokens=24,
      sampling=dj.Sampling(temperature=0),
      eos_id=tokenizers.eos_id(tokenizer))
  texts = [tokenizer.decode(np.asarray(row[start:end])) for row, start, end in
           zip(out.tokens, lengths, out.lengths)]
  results = [word in text for prompt, text in zip(prompts, texts)
             for word in prompt.split()]
  assert np.mean(results) > 0.5, texts


def test_the_reward_model():
  metadata = _metadata("harmless-reward")
  assert metadata["accuracy"] > 0.55
  lm, params = checkpoints.load(PRETRAINED / "harmless-reward")
  tokens = tokenizers.load(PRETRAINED / "harmless-reward").encode(
      "\n\nHuman: hello\n\nAssistant: hello").ids
  reward = reward_model.reward(lm, 64)
  state = reward.init(params, None, jnp.array(tokens), len(tokens))
  assert abs(float(reward.value(params, None, state))) < 10
  # Its pair has the same tokens.
  task_rewards.model("harmless-reward", model_pair.open_pair(*HARMLESS), 64)
  with pytest.raises(launch.UserError, match="is a reward model: outputs=1"):
    model_pair.open_pair("harmless-reward", HARMLESS[1])


def test_overlap_on_held_out_text(pair):
  """A few windows; another Python has other modules, hence the margins."""
  (target, target_params), (draft, draft_params) = pair
  tokens = python_corpus.encode(tokenizers.load(PRETRAINED / NAMES[0]),
                                python_corpus.HELD_OUT)
  metrics = training_steps.evaluate(
      training_steps.evaluator(training_steps.LANGUAGE, draft, target),
      draft_params,
      batches.whole(batches.even_windows(tokens, 8, 256)), target_params)
  assert metrics["overlap"] > 0.6
  assert metrics["teacher_loss"] < min(3.3, metrics["held_out_loss"])


def test_the_masked_model_fills_in_lists():
  """Copies and edits, of which it is sure; FreeDave fills in the same."""
  model, params = checkpoints.load_masked("canvas-tasks")
  examples = canvas_tasks.draw(("copy", "insert", "remove", "replace"), 16, 7)
  prompts = np.array([canvas_tasks.prompt(*x[:3]) for x in examples])
  lengths = np.full(len(prompts), canvas_tasks.PROMPT)
  base, result = (dj.canvas.generate(
      jax.random.key(0), prompts, lengths, method=method, model=model,
      params=params, length=canvas_tasks.CANVAS, block=8) for method in (
          dj.canvas.methods.static(1), dj.canvas.methods.free_dave(1, 4)))
  right = [canvas_tasks.is_right(*pair) for pair in zip(examples, base.tokens)]
  assert np.mean(right) > 0.9
  np.testing.assert_array_equal(base.tokens, result.tokens)
  assert base.forwards.sum() > 1.5 * result.forwards.sum()
  assert _metadata("canvas-tasks")["parameters"] < 2e6
