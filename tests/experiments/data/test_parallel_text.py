"""Pairs of a prompt and its completion: rows, order, training."""

import dataclasses
import itertools
import pathlib

import jax
import numpy as np
import pytest

from decoding_jax import types
from experiments import train
from experiments.data import batches, parallel_text
from models import checkpoints
from models.text import tokenizers
from models.transformer import presets
from support import tiny_models as tiny, tiny_tasks
PROMPTS = [" ".join(["dog", "sea"][:1 + i % 2]) for i in range(40)]
COMPLETIONS = ["the sea" * (1 + i % 4) for i in range(40)]
WINDOWS = (25, 48)


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer():
  return tokenizers.train([], 257)


@pytest.fixture(name="config")
def _config(tmp_path):
  for name, lines in (("p", PROMPTS), ("c", COMPLETIONS)):
    (tmp_path / name).write_text("\n".join(lines) + "\n")
  return tiny_tasks.make_training(
      tmp_path, train_pairs=("p", "c"), held_out_pairs=("p", "c"),
      windows=WINDOWS, batch_tokens=125, steps=4, eval_every=2,
      checkpoint_every=2)


def _texts(tokenizer, batch):
  """What a batch shows and what its loss counts, a row each."""
  shown = [tokenizer.decode(list(row), skip_special_tokens=False)
           for row in batch.tokens]
  counted = [tokenizer.decode(list(row[1:][weights > 0]),
                              skip_special_tokens=False)
             for row, weights in zip(batch.tokens, batch.weights)]
  return shown, counted


def test_rows(config, tokenizer):
  batch = parallel_text.data(config, tokenizer).held_out(1000)
  assert batch.tokens.shape == (40, 49)
  shown, counted = _texts(tokenizer, batch)
  for i, (prompt, completion) in enumerate(zip(PROMPTS, COMPLETIONS)):
    assert counted[i] == f" {completion}{tokenizers.EOS}"
    assert shown[i].startswith(f" {prompt} ={counted[i]}")
    assert set(shown[i].split(tokenizers.EOS)[1:]) == {""}


def test_a_completion_is_split_as_in_the_whole_text(tokenizer):
  for prompt, completion in zip(PROMPTS, COMPLETIONS):
    rows = parallel_text.rows(tokenizer, [prompt], [completion], WINDOWS)
    text = tokenizer.encode(f" {prompt} = {completion}").ids
    assert list(rows.tokens[0, :rows.ends[0] - 1]) == text
    assert rows.starts[0] == len(parallel_text.prompt_tokens(tokenizer, prompt))


def test_an_epoch_sees_every_row(config, tokenizer):
  data = parallel_text.data(config, tokenizer)
  seen, widths = set(), set()
  # 20 short rows by 5, 20 long ones by 2.
  for step in range(14):
    batch = data.train(step, None)
    widths.add(batch.tokens.shape)
    seen.update(_texts(tokenizer, batch)[1])
  assert widths == {(5, 26), (2, 49)}
  assert len(seen) == len(set(COMPLETIONS))
  again = data.train(5, None)
  np.testing.assert_array_equal(again.tokens, data.train(5, None).tokens)
  orders = [[data.train(14 * epoch + step, None).tokens.shape
             for step in range(14)] for epoch in (0, 1)]
  assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])


@pytest.mark.parametrize("share, renamed, rows, width", [
    (0.4, 0, 2, 49), (1.0, 0.5, 5, 49), (0.4, 0, 2, 20)])
def test_samples_take_their_share(config, tokenizer, share, renamed, rows,
                                  width):
  config.update(dict(sample_fraction=share, renamed_fraction=float(renamed)))
  data = parallel_text.data(config, tokenizer)
  prompts, lengths = data.prompts(6)
  end = tokenizers.eos_id(tokenizer)
  samples = np.full((6, width), types.PAD, np.int32)
  samples[:, :prompts.shape[1]] = prompts
  for row, length in zip(samples, lengths):
    row[length:length + 3] = [254, 254, end]
    row[length + 3:] = types.PAD
  for step in range(14):
    batch = data.train(step, samples)
    written = (batch.tokens == 254).any(axis=1)
    # Samples are short: a batch of long rows has none.
    assert written.sum() == (rows if len(written) == 5 else 0)
    assert (batch.weights[written].sum(axis=1) == 3).all()
  # Those that end before they begin are refused.
  config.sample_length = 10
  with pytest.raises(ValueError, match="sample_length=10 must exceed the long"):
    parallel_text.data(config, tokenizer)


# More frequent than the others, so that nothing asks for them.
FREQUENT = ["".join(x) for x in itertools.product("abcdefghij", "klmnopqr")]
RARE = ["grilled", "pizza", "cheese", "violet"]
WORDS = [" ".join(FREQUENT), " ".join(FREQUENT), " ".join(FREQUENT),
         "ak grilled bk pizza, ck is cheese", " ".join(RARE)]


@pytest.mark.parametrize("share", ["keyword_fraction", "renamed_fraction"])
def test_prompts_of_words_of_the_completion(config, share):
  config.update({share: 1.0})
  rewrite = parallel_text.rewriter(config, WORDS)
  rng = np.random.default_rng(0)
  results = [rewrite(rng, "prompt", WORDS[3]) for _ in range(50)]
  prompts = [prompt.split() for prompt, _ in results]
  assert {len(prompt) for prompt in prompts} == {2, 3}
  assert len({prompt for prompt, _ in results}) > 6
  for prompt, (_, text) in zip(prompts, results):
    words = text.replace(",", "").split()
    assert set(prompt) <= set(words) & set(RARE)
    # What is not asked for has stayed.
    kept = [old == new for old, new in zip(
        WORDS[3].replace(",", "").split(), words)]
    assert kept[0] and kept[2] and kept[4] and kept[5]
  changed = [text != WORDS[3] for _, text in results]
  assert any(changed) == (share == "renamed_fraction")
  # Without others that come twice, words are asked for and stay.
  rewrite = parallel_text.rewriter(config, WORDS[:4])
  prompt, text = rewrite(rng, "prompt", WORDS[3])
  assert set(prompt.split()) <= set(RARE) and text == WORDS[3]
  # A completion without such words is left alone, but for the prompt's order.
  prompt, text = rewrite(rng, "one two", WORDS[0])
  assert sorted(prompt.split()) == ["one", "two"] and text == WORDS[0]


def test_rewritten_pairs(config, tokenizer):
  """Rows of the corpus take turns with others; a step always sees the same."""
  config.update(dict(renamed_fraction=0.5, windows=(96, 256),
                     batch_tokens=1024))
  for name, lines in (("p", ["dog sea"] * 40),
                      ("c", WORDS[3:] * 5 + WORDS[:1] * 30)):
    (pathlib.Path(config.corpus) / name).write_text("\n".join(lines) + "\n")
  data = parallel_text.data(config, tokenizer)
  shown, counted = zip(*(_texts(tokenizer, data.train(step, None))
                         for step in range(9)))
  prompts = [text.split(" =")[0] for texts in shown for text in texts]
  known = {" dog sea", " sea dog"}
  assert known < set(prompts) and len(set(prompts)) > 3
  for prompt, text in zip(prompts, itertools.chain(*counted)):
    assert prompt in known or all(word in text for word in prompt.split())
  np.testing.assert_array_equal(data.train(3, None).tokens,
                                data.train(3, None).tokens)


def test_the_mean_counts_completions_only(monkeypatch):
  monkeypatch.setattr(train.training_steps, "_EVALUATED", 1)
  results = []

  def evaluate(params, batch, teacher_params):
    del params, teacher_params
    results.append(len(batch.tokens))
    return {"loss": batch.tokens[0, 0]}

  tokens = np.arange(3, dtype=np.int32)[:, None] * np.ones((1, 3), np.int32)
  weights = np.array([[1, 1], [0, 1], [0, 1]], np.float32)
  mean = train.training_steps.evaluate(
      evaluate, None, batches.Batch(tokens, weights))
  assert results == [1, 1, 1] and mean == {"loss": 0.75}


@pytest.mark.long
def test_training_on_pairs_and_distilling(config, tmp_path):
  # One length and one loss: less to compile.
  config.update(dict(windows=(48,), loss="total_variation"))
  first = train.train(config)
  assert (tmp_path / "tokenizer" / tokenizers.FILE).exists()
  folder = str(tmp_path / "export")
  config.update(dict(
      teacher=folder, start=folder, tokenizer=folder,
      workdir=str(tmp_path / "student"),
      export=str(tmp_path / "student" / "export"), sample_fraction=0.5,
      sample_rows=6, sample_length=49, sample_batch=4, learning_rate=1e-6))
  second = train.train(config)
  assert second["teacher_loss"] == pytest.approx(first["held_out_loss"])
  # The student begins as its teacher, and is hardly changed.
  assert 0.999 < second["overlap"] <= 1
  samples = [np.load(path) for path in
             (tmp_path / "student" / "samples").glob("*.npy")]
  assert [x.shape for x in samples] == [(4, 49)] * 2  # Whole batches.


def test_a_start_of_another_architecture(config, tmp_path):
  other = dataclasses.replace(presets.PRESETS["smoke"], dim=16)
  config.start = str(tmp_path / "other")
  checkpoints.save(config.start, other, tiny.init(jax.random.key(0), other))
  tiny_tasks.check_refused("has another architecture than", config)


@pytest.mark.parametrize("changes, message", [
    (dict(corpus="/nowhere"), "No file '/nowhere/p': --config.corpus="),
    (dict(train_pairs=("p", "absent")), "absent': --config.corpus="),
    (dict(held_out_pairs=("p",)), "config.held_out_pairs=('p',) must name two"),
    (dict(train_pairs=("p", "few")), "have 40 and 1 lines"),
    (dict(windows=(48, 25)), "config.windows=(48, 25) must ascend"),
    (dict(windows=(3,)), "needs a window of"),
    (dict(sample_fraction=0.5, sample_length=50, teacher="x"),
     "config.sample_length=50 must be at most one more"),
    (dict(keyword_fraction=0.7, renamed_fraction=0.5),
     "keyword_fraction=0.7 and")])
def test_pairs_that_cannot_be_trained(config, tmp_path, changes, message):
  (tmp_path / "few").write_text("one\n")
  config.update(changes)
  tiny_tasks.check_refused(message, config)
