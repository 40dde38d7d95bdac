"""A drafter that learns from its target's own texts; and any text as corpus."""

import json
import re
import types

import jax
import numpy as np
import pytest

from configs import train as configs
from experiments import train
from experiments.app import launch
from experiments.data import streams
from experiments.training import (
    feature_shards, head_objectives, own_texts, run as training_run)
from models import checkpoints, transformer
from models.huggingface import heads
from models.text import chat_template, tokenizers


TEMPLATE = ("{% for m in messages %}Q:{{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}A:{% endif %}")
SIZES = dict(dim=16, num_layers=1, num_heads=2, hidden_dim=32)


@pytest.fixture(name="target", scope="module")
def _target(tmp_path_factory):
  """A target of random parameters, with a tokenizer and a chat template."""
  folder = tmp_path_factory.mktemp("target") / "target"
  config = transformer.Config(
      vocab_size=270, dim=16, num_layers=1, num_heads=2, num_kv_heads=1,
      head_dim=8, hidden_dim=32, max_length=96)
  checkpoints.save(folder, config, transformer.init(jax.random.key(0), config),
                   tokenizers.train(["Q: a cat? A: a mat."] * 4, 270))
  (folder / chat_template.FILE).write_text(TEMPLATE)
  return folder


def own_config(target, folder, **changes):
  config = configs.get_config("smoke")
  config.update({**dict(
      preset="", sizes=SIZES, teacher=str(target), tokenizer="", own_texts=12,
      workdir=str(folder / "work"), export=str(folder / "export"), steps=4,
      warmup_steps=1, windows=(16, 32), sample_length=33, sample_batch=3,
      batch_tokens=64, eval_every=2, checkpoint_every=2), **changes})
  return config


def test_a_drafter_of_a_targets_own_texts(target, tmp_path, monkeypatch):
  prompts = tmp_path / "prompts.jsonl"
  prompts.write_text("\n".join(json.dumps({"prompt": x}) for x in (
      "a cat?", [{"role": "user", "content": "a mat?"}])))
  config = own_config(target, tmp_path, prompts=str(prompts))
  monkeypatch.setattr(own_texts, "CHUNK", 8)
  metadata = train.train(config)
  assert 0 < metadata["overlap"] < 1 and metadata["parameters"] > 0
  draft = checkpoints.load_config(tmp_path / "export")
  # What the config does not tell is the target's.
  assert (draft.vocab_size, draft.max_length, draft.head_dim) == (270, 96, 8)
  tokenizers.check_same(tokenizers.load(tmp_path / "export"),
                        tokenizers.load(target))
  kept = sorted((tmp_path / "work" / "texts").glob("*/*.npy"))
  # 12 questions in files of 8; answers to the two of the file and those that
  # are short enough, which few of a random target are.
  names = [path.parent.name.partition("-")[0] for path in kept]
  assert names == ["answers"] * (len(kept) - 2) + ["questions"] * 2
  # A second start reads them; whatever is missing is written as before.
  lost = np.load(kept[-1])
  kept[-1].unlink()
  training_run.prepare(config)
  np.testing.assert_array_equal(np.load(kept[-1]), lost)
  monkeypatch.setattr(own_texts.dj, "generate", None)
  run = training_run.prepare(config)
  batch = run.data.train(0, None)
  tokens = run.tokenizer.decode(batch.tokens[0].tolist())
  assert tokens.startswith("Q:")
  # The loss is over the answer alone.
  start = int(np.flatnonzero(batch.weights[0])[0])
  assert run.tokenizer.decode(batch.tokens[0, :start + 1].tolist()).endswith(
      "\nA:")
  # Texts of other settings are others.
  config = own_config(target, tmp_path, prompts=str(prompts), seed=1)
  with pytest.raises(TypeError):
    training_run.prepare(config)


def test_files_of_answers_take_turns_in_temperature(target, tmp_path,
                                                    monkeypatch):
  prompts = tmp_path / "prompts.txt"
  prompts.write_text("\n".join(["a cat?", "a mat?", "a cat?", "a mat?"]))
  monkeypatch.setattr(own_texts, "CHUNK", 2)

  def answers(seed):
    config = own_config(target, tmp_path / str(seed), own_texts=0, seed=seed,
                        prompts=str(prompts), answer_temperatures=(1.0, 0.0))
    training_run.prepare(config)
    files = sorted((tmp_path / str(seed)).glob("work/texts/answers-*/*.npy"))
    return [np.load(path) for path in files]

  sampled, greedy = zip(answers(0), answers(1))
  assert not np.array_equal(*sampled)
  np.testing.assert_array_equal(*greedy)
  # Four prompts are two whole batches of three, not a file of 256.
  monkeypatch.setattr(own_texts, "CHUNK", 256)
  assert [len(rows) for rows in answers(2)] == [6]


@pytest.mark.parametrize("changes, error", [
    ({"answer_temperatures": ()}, r"answer_temperatures=\(\): numbers of at"),
    ({"answer_temperatures": (1.0, -1.0)}, "numbers of at least 0 are needed"),
    ({"answer_temperatures": ("1",)}, r"=\('1',\): numbers of at least 0"),
    ({"teacher": "", "tokenizer": "x"}, "need a --config.teacher that writes"),
    ({"sample_length": 40}, "sample_length=40 must be 2 to one more than the"),
    ({"sample_length": 4}, "sample_length=4 leaves no room after 2 tokens"),
    ({"sample_fraction": 0.5}, "it must be 0"),
    ({"windows": (32, 16)}, "must ascend"),
    ({"sizes": {**SIZES, "dim": 0}}, "--config.sizes.dim=0: at least 1"),
    ({"sizes": {**SIZES, "vocab_size": 300}}, "--config.teacher 270"),
    ({"prompts": "/nowhere.txt"}, "No such file or directory"),
    ({"teacher_dtype": "int8"}, "teacher_dtype='int8' is not one of"),
])
def test_settings_that_describe_no_texts(target, tmp_path, changes, error):
  with pytest.raises(launch.UserError, match=error):
    train.train(own_config(target, tmp_path, **changes))


def test_a_preset_with_other_sizes(target):
  config = own_config(target, target.parent, preset="smoke",
                      sizes=dict(vocab_size=270, num_layers=3))
  result = training_run.architecture(config)
  assert (result.vocab_size, result.num_layers, result.dim) == (270, 3, 32)


def test_any_text_is_a_corpus(tmp_path):
  whole = tmp_path / "book.txt"
  text = "".join(f"line {i} of a book\n" for i in range(400))
  whole.write_text(text)
  lines = tmp_path / "texts.jsonl"
  lines.write_text("".join(
      json.dumps({"body": f"document {i} has a few words"}) + "\n"
      for i in range(200)))
  tokenizer = tokenizers.train([text], 300)
  for path, number in ((whole, 64), (lines, 200)):
    config = types.SimpleNamespace(
        corpus=str(path), corpus_field="body", dialogues="", windows=(8,),
        seed=0, batch_tokens=32, sample_fraction=0.0, sample_prompt=14)
    assert streams.has_file(config)
    train_texts = streams.texts(config)
    assert 0.85 * number < len(train_texts) < number
    data = streams.data(config, tokenizer)
    assert data.train(0, None).tokens.shape == (4, 9)
    # What is held out is no part of the rest, whole documents or lines.
    held_out = tokenizer.decode(data.held_out(10**6).tokens.ravel().tolist())
    numbers = {int(x) for x in re.findall(r"(?:line|document) (\d+) (?:of|has)",
                                          held_out)}
    assert numbers and not numbers & {
        int(x) for x in re.findall(r"(?:line|document) (\d+) ",
                                   "".join(train_texts))}
    tokens, lengths = data.prompts(2)
    assert tokens.shape == (2, 14) and lengths.tolist() == [14, 14]
  config.corpus_field = "text"
  with pytest.raises(ValueError, match="line 1 has no field 'text'"):
    streams.texts(config)


def head_config(target, folder):
  """Of a head on the answers to 12 prompts."""
  prompts = folder / "prompts.txt"
  folder.mkdir(exist_ok=True)
  prompts.write_text("".join(f"{'cat' * (i % 3)}{i}\n" for i in range(12)))
  return own_config(
      target, folder, own_texts=0, prompts=str(prompts), head="eagle3",
      head_depth=2, head_vocab=20, keep_features=True, sizes={})


def test_a_head_on_features_that_are_kept(target, tmp_path, monkeypatch):
  """With a draft vocabulary; files of features that are lost come again."""
  monkeypatch.setattr(feature_shards, "_ROWS", 5)
  monkeypatch.setattr(feature_shards, "_BATCH", 2)
  config = head_config(target, tmp_path)
  metadata = train.train(config)
  assert 0 < metadata["overlap"] < 1
  files = sorted((tmp_path / "work/features").glob("*/*.npy"))
  assert len(files) > 1
  before = [x.read_bytes() for x in files]
  files[1].unlink()
  (tmp_path / "work/metrics.jsonl").unlink()
  again = train.train(config)
  assert [x.read_bytes() for x in files] == before
  assert again["overlap"] == metadata["overlap"]
  architecture = checkpoints.load_config(target)
  params = checkpoints.load(target)[1]
  loaded = heads.load(tmp_path / "export", architecture, target_params=params)
  assert loaded.params["tokens"].shape == (20,)
  # In the place of the target's rows of these tokens.
  np.testing.assert_array_equal(
      loaded.params["output"], params["embedding" if architecture.tie_embeddings
                                      else "head"][loaded.params["tokens"]])


@pytest.mark.long
def test_a_head_is_trained_further(target, tmp_path):
  """Its draft vocabulary stays; heads of other shapes are refused."""
  config = head_config(target, tmp_path)
  train.train(config)
  config.update(start=str(tmp_path / "export"), head_vocab=0,
                workdir=str(tmp_path / "more"), export=str(tmp_path / "last"))
  run = training_run.prepare(config)
  before = training_run.first_state(config, run).params
  assert run.head.tokens.shape == (20,)
  loaded = heads.load(tmp_path / "export", checkpoints.load_config(target),
                      target_params=checkpoints.load(target)[1]).params
  jax.tree.map(np.testing.assert_array_equal, before["layer"], loaded["layer"])
  train.train(config)
  config.head = "dflash"
  with pytest.raises(launch.UserError, match="start=.* is another head than"):
    train.train(config)


@pytest.mark.long
def test_a_head_computes_in_sixteen_bits(target, tmp_path):
  """It learns as in 32, and its parameters keep them."""
  results = {}
  for dtype in ("float32", "bfloat16"):
    config = head_config(target, tmp_path / dtype)
    config.compute_dtype = dtype
    run = training_run.prepare(config)
    assert run.head.config.layer.dtype == dtype
    assert {x.dtype.name
            for x in jax.tree.leaves(run.teacher_params)} == {dtype}
    state = training_run.first_state(config, run)
    assert {x.dtype.name for x in jax.tree.leaves(state.params)} == {"float32"}
    results[dtype] = train.train(config)["overlap"]
  assert results["bfloat16"] != results["float32"]
  assert results["bfloat16"] == pytest.approx(results["float32"], abs=0.02)


def test_features_on_disk_are_those_of_the_forward(target, tmp_path):
  config = head_config(target, tmp_path)
  run = training_run.prepare(config)
  batch = run.data.train(3, None)
  texts = run.data.rows[0][batch.rows, :batch.tokens.shape[1] - 1]
  expected = head_objectives.features(run.head, run.teacher_params,
                                      np.maximum(texts, 0))
  inside = (texts >= 0)[..., None]
  for actual, whole in zip(batch.features, expected, strict=True):
    np.testing.assert_allclose(actual.astype(np.float32) * inside,
                               whole * inside, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("name, value", [("head_vocab", 20),
                                         ("keep_features", True)])
def test_texts_that_are_drawn_anew(tmp_path, name, value):
  config = configs.get_config("smoke")
  config.update(dict(head="eagle3", teacher="python-target", head_depth=2,
                     workdir=str(tmp_path / "work"), **{name: value}))
  with pytest.raises(launch.UserError, match=f"--config.{name}=.* needs texts"):
    train.train(config)
