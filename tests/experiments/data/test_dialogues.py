"""Language models of dialogues: tokens, windows, prompts, training."""

import gzip
import json
import re

import numpy as np
import pytest

from experiments.data import preference_pairs, streams
from models.text import tokenizers
from support import tiny_tasks
TEXT = "\n\nHuman: question {0}?\n\nAssistant: so\n\nHuman: no\n\nAssistant:"
PAIRS = [(TEXT.format(i) + " good", TEXT.format(i) + " bad" * (1 + i % 3))
         for i in range(60)]


@pytest.fixture(name="config")
def _config(tmp_path):
  with gzip.open(tmp_path / "d.jsonl.gz", "wt") as f:
    f.writelines(json.dumps({"chosen": a, "rejected": b}) + "\n"
                 for a, b in PAIRS)
  return tiny_tasks.make_training(
      tmp_path, dialogues="d.jsonl.gz", windows=(80,), batch_tokens=320,
      steps=6, eval_every=2, checkpoint_every=6, sample_prompt=12)


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer():
  return tokenizers.train([], 257)


@pytest.mark.parametrize("text, turns", [
    (PAIRS[0][0], 2), ("\n\nHuman: a", 1), ("a\n\nAssistant: b", 1),
    ("a\n\nHuman:\n\nHuman: \n\nHuman:b", 4)])
def test_an_end_of_text_behind_all_answers_but_the_last(tokenizer, text,
                                                        turns):
  tokens = preference_pairs.encode(tokenizer, text)
  end = tokenizers.eos_id(tokenizer)
  assert tokenizer.decode(tokens) == text
  assert list(tokens).count(end) == turns - 1
  for at in np.flatnonzero(np.array(tokens) == end):
    assert tokenizer.decode(tokens[at:]).startswith("\n\nHuman:")


def test_windows_and_prompts(config, tokenizer):
  data = streams.data(config, tokenizer)
  again = streams.data(config, tokenizer)
  questions = lambda batch: {
      number for row in batch.tokens for number in re.findall(
          r"question (\d+)\?", tokenizer.decode(list(row)))}
  held_out = questions(data.held_out(1000))
  train_ = set().union(*(questions(data.train(i, None)) for i in range(60)))
  assert len(held_out) >= 5 and len(train_) >= 30
  assert not held_out & train_
  batch = data.train(3, None)
  assert batch.tokens.shape == (4, 81) and (batch.weights == 1).all()
  np.testing.assert_array_equal(batch.tokens, again.train(3, None).tokens)
  prompts, lengths = data.prompts(20)
  assert prompts.shape == (20, 12) and (lengths == 12).all()
  assert {tokenizer.decode(list(row)) for row in prompts} == {
      "\n\nHuman: que", "\n\nHuman: no\n"}


def test_both_dialogues_of_a_pair_are_far_apart(config, tokenizer):
  """Else what comes second could be copied from what comes first."""
  config.update(dict(windows=(500,)))
  rows = streams.data(config, tokenizer).held_out(4).tokens
  texts = [tokenizer.decode(list(row)) for row in rows]
  assert any(" good" in text for text in texts)
  for text in texts:
    matches = re.findall(r"question (\d+)\?", text)
    assert matches and len(matches) == len(set(matches))


@pytest.mark.parametrize("changes, message", [
    (dict(corpus="/nowhere"), "corpus=/nowhere/d.jsonl.gz: No such file"),
    (dict(preset="harmless-reward"), "has outputs=1; what is trained needs 0"),
    (dict(sample_fraction=0.5, sample_length=80, teacher="x"),
     "--config.sample_length=80 must exceed --config.windows=(80,)"),
])
def test_dialogues_that_cannot_be_learned(config, changes, message):
  config.update(changes)
  tiny_tasks.check_refused(message, config)
