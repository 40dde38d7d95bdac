"""Tests of `experiments.cdsl` and what it is made of, on a tiny pair."""

import dataclasses
import functools
import gzip
import json
import pathlib
import re
import shutil

import jax
import numpy as np
import pytest

import decoding_jax as dj
from configs import cdsl as cdsl_config
from experiments import cdsl
from experiments.app import launch
from experiments.data import constrained_tasks, preference_pairs, python_corpus
from experiments.evaluation import constrained_cells, constrained_tables
from experiments.harness import store
from experiments.scoring import task_rewards, text_metrics
from models import checkpoints, transformer
from models.text import tokenizers
from support import helpers, tiny_models as tiny

_SIZES = {"num_candidates": 2, "lookahead": 2}
_METHODS = ({"label": "greedy", "name": "autoregressive"},
            {"label": "best", "name": "best_of_n", "num_samples": 2,
             "temperature": 1.0},
            {"label": "CDLH", "name": "cdlh", **_SIZES},
            {"label": "CDSL", "name": "cdsl", **_SIZES})


@pytest.fixture
def commongen(tmp_path):
  """A folder like CommonGen's, of three examples."""
  lines = {"dev.src_alpha.txt": ["a b", "i", "o e"],
           "dev.tgt.txt": ["a or b", "i am", "o e"],
           "dev.constraint.json": ['[["a", "A"], ["b"]]', '[["i"]]',
                                   '[["o"], ["e", "E"]]']}
  for name, text in lines.items():
    (tmp_path / name).write_text("\n".join(text) + "\n")
  return str(tmp_path)


@pytest.fixture
def dialogues(folders, tmp_path):
  """A folder of dialogues, and of a reward model with the pair's tokens."""
  first = "\n\nHuman: {0}\n\nAssistant: oh\n\nHuman: a {0}\n\nAssistant:"
  with gzip.open(tmp_path / "hh_harmless_base_test.jsonl.gz", "wt") as f:
    for i in range(40):
      f.write(json.dumps({"chosen": first.format(i) + " yes no",
                          "rejected": first.format(i) + " no"}) + "\n")
  sizes = transformer.Config(
      vocab_size=270, dim=8, num_layers=1, num_heads=1, num_kv_heads=1,
      head_dim=4, hidden_dim=8, max_length=32, tie_embeddings=False, outputs=1)
  checkpoints.save(
      tmp_path / "reward", sizes, tiny.init(jax.random.key(5), sizes),
      tokenizers.load(folders[0]))
  return str(tmp_path)


def config(folders, corpus="", **fields):
  result = cdsl_config.get_config("python")
  result.update(target=folders[0], draft=folders[1], corpus=corpus,
                prompt_length=8, max_new_tokens=6, methods=_METHODS, examples=3,
                batch=2, common=0, **fields)
  return result


@pytest.fixture(name="load")
def _load(folders):
  """Loads the task of a config for the pair."""
  pair = helpers.load_pair(*folders)
  return lambda settings: constrained_tasks.load(settings, pair)


def measured(settings, path, labels):
  """Records of some of the methods, and how often each was decoded."""
  pair = helpers.load_pair(settings.target, settings.draft)
  task = constrained_tasks.load(settings, pair)
  entries = [x for label, x in constrained_cells.entries(settings).items()
             if label in labels]
  calls = []
  with pytest.MonkeyPatch.context() as patch:
    decoder = constrained_cells.decoder

    def counted(config, pair, task, params, entry):
      decode = decoder(config, pair, task, params, entry)
      return lambda batch: (calls.append(entry.label), decode(batch))[1]

    patch.setattr(constrained_cells, "decoder", counted)
    records = constrained_cells.measure(settings, pair, task, entries, path)
  return records, calls


@pytest.mark.long
def test_from_files_to_report(folders, commongen, tmp_path):
  settings = config(folders, commongen, task="commongen")
  path = tmp_path / store.RESULTS
  _, calls = measured(settings, path, ("greedy", "CDLH"))
  assert calls.count("CDLH") == 3
  labels = [spec["label"] for spec in _METHODS]
  records, calls = measured(settings, path, labels)
  # What has a result is not run again, but for the baseline's timings.
  assert "CDLH" not in calls and calls.count("CDSL") == 3
  assert [r["label"] for r in records] == labels
  assert [json.loads(line)["label"] for line in path.read_text().splitlines()
          ] == ["greedy", "CDLH", "best", "CDSL"]
  for record in records:
    assert len(record["soft"]) == len(record["texts"]) == 3
    assert set(record["soft"]) <= {0.0, 0.5, 1.0}
    np.testing.assert_array_equal(record["hard"], np.array(record["soft"]) == 1)
    for text, soft in zip(record["texts"], record["soft"]):
      assert soft or not re.search(r"\bi\b", text) or "a b" in text
  by_label = {r["label"]: r for r in records}
  assert np.sum(by_label["CDSL"]["states"]) >= 3
  assert by_label["greedy"]["reward_calls"] == [0, 0, 0]
  assert by_label["best"]["reward_calls"] == [2, 2, 2]
  constrained_tables.write(tmp_path, records, settings)
  summary = (tmp_path / "summary.md").read_text()
  assert all(f"| {label} |" in summary for label in labels)
  by_calls = {r["label"]: r["metrics"]["target_calls"][0] for r in records}
  difference = 100 * np.mean(np.array(by_label["CDSL"]["hard"], float) -
                             by_label["CDLH"]["hard"])
  times = by_calls["CDLH"] / by_calls["CDSL"]
  last = constrained_tables.terminal(records).splitlines()[-1]
  assert last.startswith(f"- CDSL: {difference:+.1f} [")
  assert f"; CDLH takes {times:.1f} times the target calls, " in last
  assert summary.endswith(constrained_tables.verdict(records) + "\n")
  assert not constrained_tables.verdict(records[:1])


def test_counts_alone_decode_each_batch_once(folders, commongen, tmp_path):
  settings = config(folders, commongen, task="commongen", references=0)
  records, calls = measured(settings, tmp_path / store.RESULTS, ("greedy",))
  assert calls == ["greedy", "greedy"]
  assert not {"seconds", "baseline_seconds"} & records[0].keys()
  table = constrained_tables.terminal(records)
  assert "target calls" in table and "x greedy" not in table


@pytest.mark.parametrize("name, before, after", [
    ("dev.src_alpha.txt", "a b", "b a"), ("dev.tgt.txt", "i am", "i was"),
    ("dev.constraint.json", '[["i"]]', '[["o"]]')])
def test_results_are_of_these_examples(folders, commongen, load, tmp_path, name,
                                       before, after):
  wanted = config(folders, commongen, task="commongen")
  pair = helpers.load_pair(*folders)
  path = pathlib.Path(commongen) / name
  store.open_workdir(tmp_path / "run", cdsl.settings(wanted, pair,
                                                     load(wanted)))
  path.write_text(path.read_text().replace(before, after))
  with pytest.raises(launch.UserError, match="results of used_examples="):
    store.open_workdir(tmp_path / "run", cdsl.settings(wanted, pair,
                                                       load(wanted)))


def check_references(task, pair, before=""):
  """What really follows has all of the words, and its first token has not."""
  for i, (prompt, text) in enumerate(zip(task.prompts, task.references)):
    tokens = pair.tokenizer.encode(before + text).ids
    assert value(task.judge, i, prompt, tokens) == 1
    assert value(task.judge, i, prompt, tokens[:1]) < 1


def test_word_sets_that_come_along():
  settings = cdsl_config.get_config()
  pair = helpers.load_pair(settings.target, settings.draft)
  task = constrained_tasks.load(settings, pair)
  assert len(task.prompts) == len(set(task.references)) == 64
  assert pair.tokenizer.decode(task.prompts[0]).split() == [
      "dog", "ball", "park", "="]
  check_references(task, pair, " ")
  settings.examples = 65
  with pytest.raises(launch.UserError, match="examples=65: .* has 64"):
    constrained_tasks.load(settings, pair)


def test_lines_end_at_line_feeds_alone_and_are_lists_of_concepts(
    folders, commongen, load):
  settings = config(folders, commongen, task="commongen")
  (pathlib.Path(commongen) / "dev.tgt.txt").write_text(
      "a\u2028or b\ni\x0cam\no e\n", "utf-8")
  assert load(settings).references == ["a\u2028or b", "i\x0cam", "o e"]
  path = pathlib.Path(commongen) / "dev.constraint.json"
  text = path.read_text()
  for line, message in (
      ("[['i']]", "constraint.json', line 2 is not JSON: Expecting value"),
      ('"i"', "constraint.json', line 2 is of type str: a list of concepts")):
    path.write_text(text.replace('[["i"]]', line))
    with pytest.raises(launch.UserError, match=message):
      load(settings)


@pytest.mark.long
def test_a_reward_model(folders, dialogues, tmp_path):
  settings = config(folders, dialogues, task="harmless",
                    reward=f"{dialogues}/reward")
  settings.update(prompt_length=20, max_new_tokens=4)
  pair = helpers.load_pair(*folders)
  task = constrained_tasks.load(settings, pair)
  assert task.references == ["yes no"] * 3 and task.eos_id is not None
  assert task.judge.constraints is None
  read = preference_pairs.read(dialogues, "hh_harmless_base_test.jsonl.gz",
                               python_corpus.HELD_OUT)
  for prompt, (chosen, _) in zip(task.prompts, read):
    assert len(prompt) == 20
    assert chosen.removesuffix(" yes no").endswith(
        pair.tokenizer.decode(prompt))
  # An end of text is worth nothing.
  values = [value(task.judge, 0, task.prompts[0], rest)
            for rest in ([7, 8], [7, 8, *task.eos_id], [7, 9])]
  assert values[0] == pytest.approx(values[1]) != values[2]
  records, _ = measured(settings, tmp_path / store.RESULTS,
                        ("greedy", "CDLH", "CDSL"))
  for record in records:
    assert len(set(record["reward"])) == 3 and "hard" not in record
    assert record["metrics"]["reward"][0] == pytest.approx(
        np.mean(record["reward"]), abs=1e-5)
  constrained_tables.write(tmp_path, records, settings)
  summary = (tmp_path / "summary.md").read_text()
  assert "| reward |" in summary and "hard, %" not in summary


@pytest.mark.long
def test_continuations_by_a_dual_encoder(folders, tmp_path):
  """It compares prompt and text; on the host, or as a second one, it cannot."""
  sizes = dataclasses.replace(checkpoints.architecture(folders[0]),
                              tie_embeddings=False, outputs=4)
  folder = str(tmp_path / "dual")
  checkpoints.save(folder, sizes, tiny.init(jax.random.key(5), sizes),
                   tokenizers.load(folders[0]))
  pair = helpers.load_pair(*folders)
  settings = config(folders, task="continue", reward=folder)
  task = constrained_tasks.load(settings, pair)
  assert [len(x) for x in task.prompts] == [8] * 3 and all(task.references)
  values = [value(task.judge, 0, prompt, rest)
            for prompt, rest in ((task.prompts[0], [7, 8]),
                                 (task.prompts[0], [7, 9]),
                                 (task.prompts[1], [7, 8]))]
  assert len(set(values)) == 3
  records, _ = measured(settings, tmp_path / store.RESULTS, ("best",))
  assert len(set(records[0]["reward"])) == 3
  settings.second_reward = folder
  with pytest.raises(launch.UserError, match="not of rewards on the host"):
    constrained_tasks.load(settings, pair)


@pytest.mark.long
def test_a_reward_model_on_the_host(folders, dialogues, tmp_path):
  """With the pair's tokenizer it gives what it gives on the device."""
  settings = config(folders, dialogues, task="harmless",
                    reward=f"{dialogues}/reward")
  settings.update(prompt_length=20, max_new_tokens=4)
  expected = constrained_tasks.load(settings, helpers.load_pair(*folders)).judge
  settings.reward_on_host = True
  task = constrained_tasks.load(settings, helpers.load_pair(*folders))
  prompt, rest = task.prompts[0], [40, 41, *task.eos_id]
  assert value(task.judge, 0, prompt, rest) == pytest.approx(
      value(expected, 0, prompt, rest), rel=1e-5)
  assert not task_rewards.host_costs(expected)
  assert "1 call, 1 text," in task_rewards.host_costs(task.judge)
  # Another tokenizer: that of a shipped model.
  settings.reward = settings.second_reward = "harmless-reward"
  task = constrained_tasks.load(settings, helpers.load_pair(*folders))
  records, _ = measured(settings, tmp_path / store.RESULTS,
                        ("greedy", "CDLH"))
  for record in records:
    assert len(set(record["reward"])) == 3
    np.testing.assert_allclose(record["second"], record["reward"], rtol=1e-5)
    assert record["metrics"]["second"] == pytest.approx(
        record["metrics"]["reward"], rel=1e-5)


@pytest.mark.parametrize("task, field, value", [
    ("python", "split", "test"), ("python", "prompt.template", "{words}"),
    ("commongen", "prompt.shots", ({"words": "a"},)),
    ("commongen", "reward", "harmless-reward"), ("commongen", "split", "test"),
    ("harmless", "prompt.answer", "{x}"), ("continue", "reward_on_host", True),
    ("file", "split", "test")])
def test_fields_that_a_task_ignores(load, folders, task, field, value):
  settings = config(folders, task=task)
  settings.update_from_flattened_dict({field: value})
  with pytest.raises(launch.UserError, match=(
      rf"--config.{field}=.* has no effect (on|without)")):
    load(settings)


def test_reward_models_that_cannot_be(folders, dialogues, load):
  settings = config(folders, dialogues, task="harmless", reward=folders[1])
  for name, second, message in (
      ("", "", "^reward='': a reward model is needed"),
      (folders[1], "", "is a model of texts, not of rewards"),
      ("harmless-reward", "", "reward_on_host=True"),
      ("nowhere", "", "model 'nowhere' is neither a folder"),
      (f"{dialogues}/reward", folders[1], "^second_reward='.*' is a model")):
    settings.update(reward=name, second_reward=second)
    with pytest.raises(launch.UserError, match=message):
      load(settings)


def test_common_identifiers(folders, load, tmp_path):
  """A corpus of one's own, in which `spam` is common and `eggs` is not."""
  for i in range(64):
    lines = [f"n{i}{j} = spam" for j in range(40)] + ["eggs = 2"] * (i < 8)
    (tmp_path / f"module{i}.py").write_text("\n".join(lines) + "\n")
  settings = config(folders, str(tmp_path))
  settings.common = 1
  expected = task_rewards.lexical(
      [[["spam"]]] * 3, helpers.load_pair(*folders), 6).constraints
  jax.tree.map(np.testing.assert_array_equal, load(settings).judge.constraints,
               expected)
  settings.max_new_tokens = 1
  with pytest.raises(launch.UserError, match="only 0 held-out prompts"):
    load(settings)


def test_python_examples(folders, load):
  settings = config(folders)
  settings.max_new_tokens = 16
  task = load(settings)
  assert len(task.references) == 3 and [*map(len, task.prompts)] == [8] * 3
  assert task.eos_id is None
  counts = task.judge.constraints.count
  assert (1 <= counts).all() and (counts <= settings.concepts).all()
  check_references(task, helpers.load_pair(*folders))


@functools.partial(jax.jit, static_argnums=0)
def _value(reward, params, constraint, prompt, length, rest, valid):
  state = reward.init(params, constraint, prompt, length)
  return reward.value(params, constraint, reward.advance(
      params, constraint, state, rest, valid))


def value(judge, i, prompt, rest):
  """The reward of one text, by a program of few widths."""
  constraint = jax.tree.map(lambda x: x[i], judge.constraints)
  texts = [np.zeros(-len(x) % 32 + len(x), int) for x in (prompt, rest)]
  for padded, text in zip(texts, (prompt, rest)):
    padded[:len(text)] = text
  return float(_value(judge.reward, judge.params, constraint, texts[0],
                      len(prompt), texts[1], np.arange(texts[1].size) <
                      len(rest)))


@pytest.mark.parametrize("fields, message", [
    ({"task": "chess"}, "task='chess' is not one of python, commongen, "
     "harmless"),
    ({"task": "commongen", "corpus": "nowhere"}, "'nowhere/dev.src_alpha.txt'"
     ".*config.corpus='nowhere' must be a folder with"),
    ({"examples": 0}, "examples=0: at least 1"),
    ({"prompt_length": 10**6}, "1000000 tokens .* max_length="),
    ({"task": "commongen", "examples": 9}, "examples=9: .* has 3 concept sets"),
    ({"task": "harmless", "corpus": "nowhere"}, "=nowhere/hh_.*: No such"),
])
def test_tasks_that_cannot_be(folders, commongen, load, fields, message):
  settings = config(folders, commongen)
  settings.update(fields)
  with pytest.raises(launch.UserError, match=message):
    load(settings)


@pytest.mark.parametrize("spec, message", [
    ({"name": "autoregressive"}, "label None is missing"),
    ({"label": "greedy", "name": "autoregressive"}, "comes twice"),
    ({"label": "x", "name": "cdl"}, "'cdl' is no method: did you mean cds"),
    ({"label": "x", "name": "cdlh", "width": 3}, "cdlh takes num_candidates"),
    # What `generate` would refuse.
    ({"label": "x", "name": "cdlh", "temperature": 1.0, **_SIZES},
     "temperature=1.0"),
    ({"label": "x", "name": "best_of_n", "num_samples": 2},
     "temperatures above 0"),
    ({"label": "x", "name": "beam_search", "num_beams": 300}, "300 siblings")])
def test_methods_that_cannot_be(folders, load, spec, message):
  settings = config(folders)
  settings.max_new_tokens = 16
  with settings.unlocked():
    settings.methods = (*_METHODS, spec)
  task = load(settings)
  with pytest.raises(launch.UserError, match=message):
    cdsl.load(settings, helpers.load_pair(*folders), task,
              constrained_cells.entries(settings).values())


def test_a_method_as_a_string(folders):
  settings = config(folders)
  with settings.unlocked():
    settings.methods = ("cdlh(8, lookahead=4)",
                        {"label": "b", "name": "best_of_n(2)", "top_p": 0.5,
                         "temperature": 1.0})
  entries = constrained_cells.entries(settings)
  assert list(entries) == ["cdlh(8, lookahead=4)", "b"]
  first, second = entries.values()
  assert first.method is dj.methods.cdlh(8, 4)
  assert first.sampling.temperature == 0
  assert second.method is dj.methods.best_of_n(2)
  assert second.sampling.top_p == 0.5


def test_presets():
  for preset in ("default", "python", "smoke", "commongen", "commongen,sweep",
                 "harmless", "trees", "commongen,search"):
    entries = constrained_cells.entries(cdsl_config.get_config(preset))
    assert "greedy" in entries
  with pytest.raises(ValueError, match="'nothing' is not one of"):
    cdsl_config.get_config("smoke,nothing")


def test_quality():
  texts = ["a cat sat down", "a b a b"]
  np.testing.assert_allclose(text_metrics.bleu(texts, texts), 100)
  np.testing.assert_allclose(
      text_metrics.rouge_l(["a cat", "x"], ["a cat sat", "y"]), [80, 0])
  np.testing.assert_allclose(text_metrics.distinct_2([*texts, "one"]),
                             [1, 2 / 3, 1])


def test_own_file_of_words_and_banned_words(folders, load, tmp_path):
  path = tmp_path / "own.jsonl"
  path.write_text("\n".join(map(json.dumps, (
      {"prompt": "say", "words": ["a", ["i", "I"]], "banned": ["o"]},
      {"prompt": "go", "reference": "an e"}))) + "\n")
  settings = config(folders, str(path), task="file")
  settings.update(examples=2, prompt={
      "template": "{prompt} {words}:", "answer": " {said}", "between": ";",
      "shots": ({"prompt": "be", "words": "u", "said": "u"},)})
  tokenizer, task = helpers.load_pair(*folders).tokenizer, load(settings)
  assert [tokenizer.decode(x) for x in task.prompts] == [
      "be u: u;say a, i:", "be u: u;go :"]
  assert task.references == ["", "an e"]

  def worth(row, text):
    """The reward of a text of an example."""
    return value(task.judge, row, task.prompts[row], tokenizer.encode(text).ids)

  # Half for the words, half for what is avoided.
  assert [worth(0, x) for x in (" a i", " a", " a i o", " o", " no")] == [
      1, .75, .5, 0, .5]
  assert worth(1, " o") == 1


@pytest.mark.parametrize("record, message", [
    ({"prompt": "a", "words": "b"}, "field 'words' is of type str: a list"),
    ({"prompt": "a", "words": [[]]}, "field 'words' has .*: a word, or a list"),
    ({"prompt": "a", "banned": [3]}, "field 'banned' is .3.: a list of words"),
    ({"text": "a", "words": ["b"]}, "is not a template of the fields text, "),
    ("a", "line 1: a record with fields is needed; it is of type str"),
])
def test_own_file_that_cannot_be_read(folders, load, tmp_path, record, message):
  path = tmp_path / "own.jsonl"
  path.write_text(json.dumps(record) + "\n")
  settings = config(folders, str(path), task="file")
  settings.update(examples=1, prompt={"template": "{prompt}"})
  with pytest.raises(launch.UserError, match=message):
    load(settings)


def test_commongen_by_instruction(folders, commongen, load, tmp_path):
  settings = config(folders, commongen, task="commongen")
  settings.prompt.template = "use {words}"
  decode = helpers.load_pair(*folders).tokenizer.decode
  prompts = load(settings).prompts
  assert [decode(x) for x in prompts] == ["use a, b", "use i", "use o, e"]
  # A chat model is to be asked in its own form.
  settings.target = shutil.copytree(folders[0], tmp_path / "chat").as_posix()
  (tmp_path / "chat" / "chat_template.jinja").write_text(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}:")
  assert "is a chat model" in constrained_tasks.advice(settings)
  settings.update(chat=True, system="be")
  assert not constrained_tasks.advice(settings)
  assert decode(load(settings).prompts[1]) == "[system]be[user]use i:"
