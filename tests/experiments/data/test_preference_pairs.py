"""Reward models: data, training, and as a reward."""

import gzip
import json
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from experiments import train
from experiments.data import preference_pairs
from models import checkpoints, transformer
from models.text import tokenizers
from models.transformer import reward_model
from support import tiny_models as tiny, tiny_tasks
PAIRS = [(f"question {i}: good", f"question {i}: bad" + "!" * (i % 30))
         for i in range(60)]
CONFIG = transformer.Config(
    vocab_size=9, dim=8, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=4, hidden_dim=8, max_length=6, tie_embeddings=False, outputs=1)


@pytest.fixture(name="config")
def _config(tmp_path):
  with gzip.open(tmp_path / "p.jsonl.gz", "wt") as f:
    f.writelines(json.dumps({"chosen": a, "rejected": b}) + "\n"
                 for a, b in PAIRS)
  return tiny_tasks.make_training(
      tmp_path, preferences="p.jsonl.gz", preset="harmless-reward",
      windows=(25, 40), batch_tokens=200, steps=16, learning_rate=3e-3,
      eval_every=8, checkpoint_every=16)


def test_pairs_of_rows(config):
  tokenizer = tokenizers.train([], 257)
  data = preference_pairs.data(config, tokenizer)
  held_out = data.held_out(1000)
  train_batch = data.train(0, None)
  texts = []
  for batch in (held_out, train_batch):
    ends = batch.weights.argmax(axis=1) + 1
    assert (batch.weights.sum(axis=1) == 1).all()
    texts.append([tokenizer.decode(list(row[:end]))
                  for row, end in zip(batch.tokens, ends)])
  # Of a long text the end is left.
  whole = {(a[-40:], b[-40:]) for a, b in PAIRS}
  for text in texts:
    assert set(zip(text[::2], text[1::2])) <= whole
  assert not set(texts[0]) & set(texts[1])
  assert 5 <= len(texts[0]) / 2 <= 25
  # None is in both splits.
  results = [set(preference_pairs._read(config, split))
             for split in ("train", "held-out")]
  assert not results[0] & results[1] and results[0] | results[1] == set(PAIRS)
  questions = [{os.path.commonprefix(pair) for pair in x} for x in results]
  assert not questions[0] & questions[1]


@pytest.mark.long
def test_training(config, tmp_path):
  metadata = train.train(config)
  assert metadata["accuracy"] > 0.9
  assert metadata["held_out_loss"] < 0.6
  lm, params = checkpoints.load(tmp_path / "export")
  ids = [tokenizers.load(tmp_path / "export").encode(text).ids
         for text in PAIRS[3]]
  reward = reward_model.reward(lm, 40)
  values = []
  for row in ids:
    state = reward.init(params, None, jnp.array(row), len(row))
    values.append(float(reward.value(params, None, state)))
  assert values[0] > values[1]


@pytest.mark.parametrize("changes, message", [
    (dict(corpus="/nowhere"), "corpus=/nowhere/p.jsonl.gz: No such file"),
    (dict(teacher="x"), "config.teacher='x': a reward model"),
    (dict(windows=(9, 3)), "config.windows=(9, 3) must ascend"),
    (dict(preset="smoke"), "config.preset='smoke' has outputs=0"),
    (dict(preferences="", corpus=""),
     "config.preset='harmless-reward' has outputs=1")])
def test_preferences_that_cannot_be_trained(config, changes, message):
  config.update(changes)
  tiny_tasks.check_refused(message, config)


@pytest.mark.parametrize("content, message", [
    (b'{"chosen": "a", "rejected": "b"}\n{"chosen": "a"}\n',
     "p.jsonl', line 2 has no field 'rejected'; there are chosen"),
    (b'{"chosen": "a", "rejected": 1}\n', "line 1: field 'rejected' is of"),
    (b"[]\n{", "p.jsonl', line 2 is not JSON"),
    (b"\xff", "p.jsonl' cannot be read: "),
    (b"\n", "p.jsonl' is empty"),
    (b'\n{"chosen": "a", "rejected": "b"}\n', "p.jsonl' has no ")])
def test_files_that_cannot_be_read(config, tmp_path, content, message):
  (tmp_path / "p.jsonl").write_bytes(content)
  config.update(preferences="p.jsonl")
  tiny_tasks.check_refused(message, config)


@pytest.fixture(name="model", scope="module")
def _model():
  lm = transformer.language_model(CONFIG)
  return lm, tiny.init(jax.random.key(3), CONFIG)


def test_a_value_is_the_output_at_the_last_token(model):
  lm, params = model
  text = jnp.array([[1, 5, 2, 8, 3, 7, 7, 1]])
  outputs = jax.jit(transformer.causal_logits, static_argnums=0)(
      lm, params, text[:, :6])[0, :, 0]
  late = transformer.causal_logits(lm, params, text[:, 2:])[0, -1, 0]
  assert len(set(np.asarray(outputs).round(7))) > 4
  reward = reward_model.reward(lm, 6)
  assert reward is reward_model.reward(lm, 6)
  tokens = jnp.concatenate([text[0], jnp.array([-1])])[None]
  for start, end, expected in ((1, 3, outputs[2]), (2, 6, outputs[5]),
                               (1, 1, outputs[0]), (3, 8, late)):
    out = dj.Generation(tokens, jnp.array([end]), None, None)
    values = dj.constraints.evaluate(reward, params, None, out,
                                     jnp.array([start]))
    np.testing.assert_allclose(values, [expected], rtol=1e-5)


def test_tokens_one_by_one(model):
  lm, params = model
  reward = reward_model.reward(lm, 6)
  text, valid = jnp.array([4, 1, 3, 8, 2, 5, 6]), jnp.arange(7) % 3 > 0
  first = reward.init(params, None, jnp.array([7, 2, 0, 0]), 2)
  whole = reward.advance(params, None, first, text, valid)
  state = first
  for i in range(7):
    state = reward.advance(params, None, state, text[i:i + 1], valid[i:i + 1])
  kept = [7, 2, 1, 3, 2, 5]
  for x in (whole, state):
    assert list(x.tokens[:x.length]) == kept


def test_a_token_that_is_left_out(model):
  """The text is worth what it is without, wherever the token stands."""
  lm, params = model
  reward = reward_model.reward(lm, 6, (2,))
  assert reward is not reward_model.reward(lm, 6)
  values = []
  for prompt, text in (([2, 4, 2, 1], [2, 3, 8, 2]), ([4, 1], [3, 8])):
    state = reward.init(params, None, jnp.array(prompt), len(prompt))
    state = reward.advance(params, None, state, jnp.array(text),
                           jnp.ones(len(text), bool))
    assert list(state.tokens[:state.length]) == [4, 1, 3, 8]
    values.append(float(reward.value(params, None, state)))
  assert values[0] == pytest.approx(values[1])


def test_a_capacity_that_the_model_does_not_know(model):
  with pytest.raises(ValueError, match="capacity=7: 1 to 6"):
    reward_model.reward(model[0], 7)
  with pytest.raises(ValueError, match="outputs=1 needs tie_embeddings=False"):
    transformer.Config(9, 8, 1, 2, 1, 4, 8, 6, outputs=1)
