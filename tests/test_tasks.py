"""Tasks: their files, templates, lengths and figures."""

import gzip
import importlib
import itertools
import json
import os
import pathlib
import sys
import types

import jax
import numpy as np
import pytest
import sacrebleu

from configs import rsd as rsd_config
from configs import rsd_llama2
from configs import rsd_opt
from configs import tasks as tasks_config
from experiments import buckets
from experiments import cells
from experiments import corpus
from experiments import launch
from experiments import prompts
from experiments import quality
from experiments import report
from experiments import rsd
from experiments import tasks
from models import chat
from models import tokenizer_files
from models import tokenizers
import helpers
import models_for_tests as tiny

generate_lib = importlib.import_module("decoding_jax.generate")
_DATA = os.environ.get("DECODING_JAX_DATA", "")
# A record of each task as its files have it, and what its prompt ends with.
_RECORDS = {
    "xsum": ({"document": "A long day.", "summary": "Day.", "id": "1"},
             "Article: A long day.\nSummary in one sentence:", "Day."),
    "wmt18_de_en": ({"translation": {"de": "Ja.", "en": "Yes."}},
                    "\n\nGerman: Ja.\nEnglish:", "Yes."),
    "dolly": ({"instruction": "Why?", "context": "", "response": "So.",
               "category": "open_qa"},
              "### Instruction:\nWhy?\n\n### Response:\n", "So."),
    "spec_bench": ({"question_id": 1, "category": "qa",
                    "turns": ["Who?", "And?"]}, "Who?\n", None),
    "mt_bench": ({"question_id": 81, "turns": ["Who?", "And?"]}, "Who?\n",
                 None),
    "humaneval": ({"task_id": "HumanEval/0", "prompt": "def f():\n",
                   "canonical_solution": "  pass\n"}, "def f():\n", None),
    "mbpp": ({"text": "Write f.", "code": "f = 1", "task_id": 1,
              "test_list": ["assert f == 1", "assert f"]},
             "here is your task: Write f. Your code should pass these tests:"
             "\n\nassert f == 1\nassert f\n[BEGIN]\n", "f = 1\n[DONE]"),
    "gsm8k": ({"question": "1 + 1?", "answer": "#### 2"},
              "\n\nQuestion: 1 + 1?\nAnswer:", "#### 2"),
}


@pytest.fixture(name="tokenizer", scope="module")
def _tokenizer():
  return tokenizers.train(["abc"], 257)


@pytest.fixture(name="pair", scope="module")
def _pair(tokenizer):
  model = types.SimpleNamespace(max_length=4096)
  return launch.ModelPair(model, None, model, None, tokenizer, 0.1, eos_id=0)


def _config(task, data, **update):
  config = rsd_config.get_config()
  config.update(task=task, data=str(data), prompts=1, **update)
  return config


def _jsonl(path, *values):
  path.write_text("".join(json.dumps(value) + "\n" for value in values))
  return path


@pytest.mark.parametrize("task", sorted(tasks_config.get_tasks()))
def test_readers(task, pair, tmp_path):
  record, end, reference = _RECORDS[task]
  path = _jsonl(tmp_path / "data.jsonl", record)
  got = tasks.load(_config(task, path), pair)
  assert pair.tokenizer.decode(got.prompts[0]).endswith(end)
  assert got.references == (None if reference is None else [reference])
  assert got.eos_id == 0
  assert set(got.metrics) <= set(quality.CORPUS)
  assert got.note.startswith(f"Task {task}: 1 prompts of the first 1 of 1 ex")


@pytest.mark.parametrize("task, value, prompt, reference", [
    ("dolly", {"prompt": "### Response:", "answer": "So."}, "### Response:\n",
     "So."),
    ("dolly", {"instruction": "Why?", "context": "It is.", "response": "So."},
     tasks_config._ALPACA.format(  # pylint: disable=protected-access
         instruction="Why?", context="### Input:\nIt is.\n\n"), "So."),
    ("wmt18_de_en", "Translate: Ja", "Translate: Ja", None),
    ("mt_bench", {"prompt": ["Who?", "And?"]}, "Who?\n", None),
])
def test_other_formats(task, value, prompt, reference, pair, tmp_path):
  path = tmp_path / "data.json"
  path.write_text(json.dumps([value]))
  got = tasks.load(_config(task, path), pair)
  assert pair.tokenizer.decode(got.prompts[0]) == prompt
  assert got.references == (reference and [reference])


def test_braces_in_a_record_are_text(pair, tmp_path):
  path = _jsonl(tmp_path / "data.jsonl", {"turns": ["a {b} {0} {"]})
  got = tasks.load(_config("spec_bench", path), pair)
  assert pair.tokenizer.decode(got.prompts[0]) == "a {b} {0} {\n"


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.json", "a.jsonl.gz"])
def test_text_goes_on_from_line_starts(name, pair, tmp_path):
  text = "one two three\n  four five six\n"
  data = text
  if ".json" in name:
    data = json.dumps([text] if name == "a.json" else {"text": text})
  data = data.encode()
  path = tmp_path / name
  path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
  config = _config("text", path, prompt_length=5, max_new_tokens=6)
  config.prompts = 2
  got = tasks.load(config, pair)
  assert sorted(map(pair.tokenizer.decode, got.prompts)) == ["  fou", "one t"]
  assert got.eos_id is None and not got.note


def test_the_default_is_what_it_was(tokenizer, pair):
  config = rsd_config.get_config()
  config.update(prompt_length=8, max_new_tokens=4, prompts=3)
  got = tasks.load(config, pair)
  assert got == tasks.Examples(corpus.prompts(tokenizer, 3, 8, 4, seed=0))


@pytest.mark.parametrize("name, text, message", [
    ("a.jsonl", "", "data='.*a.jsonl' is empty"),
    ("a.jsonl", '{"turns": ["x"]}\n\n{"turns": [', "line 3 is not JSON"),
    ("a.jsonl", '{"turns": ["x"]}\n{"turn": "y"}',
     "a.jsonl', line 2 has no field 'turns.0'; there are turn"),
    ("a.jsonl", '{"turns": [1]}', "line 1: field 'turns.0' is of type int"),
    ("a.jsonl", '{"turns": []}', "line 1 has no field 'turns.0'"),
    ("a.json", '{"turns": ["x"]}', "a.json' is of type dict: a list"),
    ("a.json", "[1, 2]", "item 1 has no field 'turns.0'; it is of type int"),
    ("a.txt", "plain", "a.txt' has no field 'turns.0'; it is of type str"),
    ("a.jsonl.gz", "plain", "a.jsonl.gz' cannot be read"),
])
def test_wrong_files(name, text, message, pair, tmp_path):
  path = tmp_path / name
  path.write_text(text)
  config = _config("spec_bench", path)
  config.prompts = 2
  with pytest.raises(launch.UserError, match=message):
    tasks.load(config, pair)


def test_no_format_fits(pair, tmp_path):
  path = _jsonl(tmp_path / "a.jsonl", {"de": "Ja."})
  with pytest.raises(launch.UserError, match=(
      r"a.jsonl', line 1 has none of the formats .*'translation.de'"
      r".*; there are de\.")):
    tasks.load(_config("wmt18_de_en", path), pair)


@pytest.mark.parametrize("task, update, message", [
    ("squad", {}, "task='squad' is not one of 'python', 'text', "),
    ("spec_bench", {"too_long": "middle"}, "too_long='middle' is not one of"),
    ("spec_bench", {"buckets": 0}, "buckets=0"),
    ("spec_bench", {"longest_prompt": -1}, "longest_prompt=-1"),
    ("spec_bench", {"max_new_tokens": 4096}, "max_length=4096"),
    ("spec_bench", {"prompts": 9}, "prompts=9 are too many. .* 1 prompts of"),
    ("spec_bench", {"data": "none.jsonl"}, "none.jsonl"),
    ("spec_bench", {"data": ""}, "data is empty, and the task has no data set"),
    ("text", {"data": ""}, "data is empty: task='text' needs a file"),
    ("spec_bench", {"chat": True}, "has no chat template"),
    ("spec_bench", {"tasks": {"spec_bench": {"metrics": ("cider",)}}},
     "metrics='cider' is not one of 'bleu'"),
    ("spec_bench", {"tasks": {"spec_bench": {"formats": {"turns": {
        "template": "{trun}"}}}}}, "template='{trun}' is not a template of .*"),
])
def test_wrong_settings(task, update, message, pair, tmp_path):
  path = _jsonl(tmp_path / "a.jsonl", {"turns": ["x"]})
  config = _config(task, path)
  config.update(update)
  with pytest.raises(launch.UserError, match=message):
    tasks.load(config, pair)


@pytest.mark.parametrize("side, lengths, what", [
    ("leave_out", [3, 5], "2 longer ones were left out."),
    ("left", [3, 5, 5, 5], "of 2 longer ones the left end was cut off."),
    ("right", [3, 5, 5, 5], "of 2 longer ones the right end was cut off."),
])
def test_prompts_without_room(side, lengths, what, pair, tmp_path):
  path = _jsonl(tmp_path / "a.jsonl",
                *({"turns": ["ab" * n]} for n in (1, 2, 3, 4)))
  config = _config("spec_bench", path, longest_prompt=5, too_long=side)
  config.prompts = len(lengths)
  got = tasks.load(config, pair)
  assert sorted(map(len, got.prompts)) == lengths
  assert "there is room for 5 tokens" in got.note
  if side != "leave_out":
    assert got.note.endswith(what)
  else:
    config.prompts = 3
    with pytest.raises(launch.UserError, match=what):
      tasks.load(config, pair)


def test_room_is_the_models_own(tokenizer):
  large, small = (types.SimpleNamespace(max_length=n) for n in (64, 32))
  pair = launch.ModelPair(large, None, small, None, tokenizer, 0.1)
  config = _config("spec_bench", "", max_new_tokens=12)
  assert tasks.room(config, pair) == 20
  config.longest_prompt = 7
  assert tasks.room(config, pair) == 7
  config.longest_prompt = 99
  assert tasks.room(config, pair) == 20


def test_shortening_keeps_what_texts_begin_with(tokenizer):
  other = type(tokenizer).from_str(tokenizer.to_str())
  tokenizer_files.begin_with(other, tokenizers.EOS)
  encoding = other.encode("abcdef")
  decode = lambda side: other.decode(
      prompts.shorten(encoding, 4, side), skip_special_tokens=False)
  assert decode("left") == "<|endoftext|>def"
  assert decode("right") == "<|endoftext|>abc"
  assert prompts.shorten(encoding, 4, "leave_out") is None
  assert prompts.shorten(encoding, 7, "leave_out") == encoding.ids
  assert prompts.shorten(encoding, None, "left") == encoding.ids


def test_more_examples_extend_fewer(pair, tmp_path):
  path = _jsonl(tmp_path / "a.jsonl", *({"turns": [str(n)]} for n in range(9)))
  config = _config("spec_bench", path)
  config.prompts = 9
  all_of_them = tasks.load(config, pair).prompts
  config.prompts = 4
  assert tasks.load(config, pair).prompts == all_of_them[:4]
  config.seed = 1
  assert tasks.load(config, pair).prompts != all_of_them[:4]


def test_one_category(pair, tmp_path):
  path = _jsonl(tmp_path / "a.jsonl", *(
      {"turns": [str(n)], "category": "qa" if n % 2 else "rag"}
      for n in range(6)))
  config = _config("spec_bench", path, category="qa")
  config.prompts = 3
  got = tasks.load(config, pair)
  assert {pair.tokenizer.decode(p) for p in got.prompts} == {
      "1\n", "3\n", "5\n"}
  assert "3 prompts of the first 3 of 3 examples of category qa" in got.note
  config.category = "maths"
  with pytest.raises(launch.UserError, match="'maths' is not one of 'rag', '"):
    tasks.load(config, pair)


_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role not in "
    "['system', 'user', 'assistant'] %}{{ raise_exception('role ' + m.role) }}"
    "{% endif %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}")


@pytest.mark.parametrize("files", [
    {"tokenizer_config.json": {"bos_token": {"content": "<s>"},
                               "chat_template": _TEMPLATE}},
    {"tokenizer_config.json": {"bos_token": "<s>", "chat_template": [
        {"name": "tools", "template": "no"},
        {"name": "default", "template": _TEMPLATE}]}},
    {"tokenizer_config.json": {"bos_token": "<s>", "chat_template": "no"},
     "chat_template.jinja": _TEMPLATE},
])
def test_chat_templates(files, pair, tmp_path):
  for name, content in files.items():
    (tmp_path / name).write_text(content if name.endswith("jinja")
                                 else json.dumps(content))
  path = _jsonl(tmp_path / "a.jsonl", {"question": "1 + 1?", "answer": "2"})
  config = _config("gsm8k", path, chat=True, target=str(tmp_path),
                   system="Be brief.")
  [prompt] = tasks.load(config, pair).prompts
  text = pair.tokenizer.decode(prompt)
  assert text.startswith("<s>[system]Be brief.[user]Question: A box holds")
  assert text.endswith(
      "#### 40[user]Question: 1 + 1?\nAnswer:[assistant]")
  with pytest.raises(ValueError, match="refuses the messages: role tool"):
    chat.load(tmp_path)([{"role": "tool", "content": ""}])


@pytest.mark.parametrize("template, message", [
    ("{% if %}", "is wrong"),
    ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "refuses"),
    ("{{ messages.append(1) }}", "refuses"),
])
def test_chat_templates_that_may_not_be(template, message, tmp_path):
  (tmp_path / chat.FILE).write_text(template)
  with pytest.raises(ValueError, match=message):
    chat.load(tmp_path)([{"role": "user", "content": "Hi"}])


def test_chat_template_without_jinja(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "jinja2", None)
  with pytest.raises(ValueError, match="need the package jinja2: pip install"):
    chat.load(tmp_path)


def test_data_sets_by_name(pair, monkeypatch):
  asked = []

  def load_dataset(*args, **kwargs):
    asked.append((args, kwargs))
    return [{"translation": {"de": "Ja.", "en": "Yes."}}]

  monkeypatch.setitem(sys.modules, "datasets",
                      types.SimpleNamespace(load_dataset=load_dataset))
  got = tasks.load(_config("wmt18_de_en", ""), pair)
  assert got.references == ["Yes."]
  tasks.load(_config("wmt18_de_en", "hub:me/mine"), pair)
  assert asked == [(("wmt/wmt18", "de-en"), {"split": "test"}),
                   (("me/mine", "de-en"), {"split": "test"})]

  def refuse(*_, **__):
    raise OSError("no network")

  monkeypatch.setitem(sys.modules, "datasets",
                      types.SimpleNamespace(load_dataset=refuse))
  with pytest.raises(launch.UserError, match="'me/mine' .*loaded: no network"):
    tasks.load(_config("wmt18_de_en", "hub:me/mine"), pair)


def test_data_sets_by_name_without_the_package(pair, monkeypatch):
  monkeypatch.setitem(sys.modules, "datasets", None)
  with pytest.raises(launch.UserError, match="need the package datasets: pip"):
    tasks.load(_config("xsum", ""), pair)


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_widths_have_the_least_padding(count):
  rng = np.random.default_rng(count)
  for _ in range(20):
    lengths = rng.integers(1, 12, size=8)
    sizes = np.unique(lengths)
    padded = lambda chosen: chosen[np.searchsorted(chosen, lengths)].sum()
    best = min(padded(np.array([*some, sizes[-1]]))
               for n in range(min(count, len(sizes)))
               for some in itertools.combinations(sizes[:-1], n))
    got = buckets.widths(lengths, count)
    assert len(got) <= count and got[-1] == sizes[-1]
    assert padded(got) == best


def test_members_are_all_rows():
  lengths = np.array([3, 9, 4, 9, 2, 30])
  got = {width: rows.tolist() for width, rows in buckets.members(lengths, 3)}
  assert got == {4: [0, 2, 4], 9: [1, 3], 30: [5]}


def test_ragged_batches():
  config = rsd_config.get_config()
  config.update(batch=2, buckets=2)
  rows = [[1] * n for n in (3, 9, 4, 8, 2)]
  batches, places = cells.make_batches(config, rows)
  assert [b[1].shape for b in batches] == [(2, 4), (2, 4), (2, 9)]
  shapes = cells.one_of_each_shape(batches)
  assert [b[1].shape[1] for b in shapes] == [4, 9]
  found = [(key, row[:n]) for keys, prompts_, lengths in batches
           for key, row, n in zip(keys, prompts_, lengths)]
  key = jax.random.key(config.seed)
  for i, (row, place) in enumerate(zip(rows, places, strict=True)):
    assert found[place][1].tolist() == row
    np.testing.assert_array_equal(
        jax.random.key_data(found[place][0]),
        jax.random.key_data(jax.random.fold_in(key, i)))
  for _, prompts_, lengths in batches:
    assert all((row[n:] == 0).all() for row, n in zip(prompts_, lengths))


def test_texts_of_a_length_share_a_batch():
  config = _config("text", "", batch=2, buckets=2)
  rows = [[1], [2], [3, 3], [4, 4], [5, 5], [6, 6]]
  batches, places = cells.make_batches(config, rows, [9, 9, 7, 2, 7, 3])
  assert [b[1][:, 0].tolist() for b in batches] == [[1, 2], [4, 6], [3, 5]]
  assert places.tolist() == [0, 1, 4, 2, 5, 3]
  assert cells.most_rows(config) == 1
  config.update(prompts=9, batch=8, queue=9)
  assert cells.most_rows(config) == 8 + 4
  config.update(batch=2, queue=0)
  # Keys go by the prompt, not by the place.
  plain, _ = cells.make_batches(config, rows)
  np.testing.assert_array_equal(jax.random.key_data(batches[1][0])[0],
                                jax.random.key_data(plain[1][0])[1])


def test_a_run_of_ragged_prompts(folders, tmp_path):
  pair = helpers.load_pair(*folders)
  path = _jsonl(tmp_path / "a.jsonl", *(
      {"de": "x" * n, "en": "y"} for n in (1, 2, 3, 12, 13)))
  config = _config("wmt18_de_en", path, batch=2, buckets=2, max_new_tokens=5,
                   temperatures=(1.0,), target=folders[0], draft=folders[1])
  config.update(prompts=5, tasks={"wmt18_de_en": {"formats": {"pairs": {
      "template": "{german}", "shots": ()}}}})
  examples = tasks.load(config, pair)
  methods = [launch.method({"name": "autoregressive"}),
             launch.method({"name": "rsd_s", "width": 2, "depth": 1})]
  size = generate_lib._generate._cache_size  # pylint: disable=protected-access
  before = size()
  with tiny.quickly_compiled():
    found = rsd.measure(config, pair, methods, examples, tmp_path / "results")
  assert size() - before <= len(methods) * config.buckets
  assert [record["method"] for record in found] == [m.name for m in methods]
  for record in found:
    assert len(record["texts"]) == len(record["emitted"]) == 5
    assert len(record["tokens"]) == 3
    assert len(record["row_steps"]) == 3
    assert 0 <= record["metrics"]["idle_share"][0] < 1
    assert all(1 <= n <= 5 for n in record["emitted"])
    assert record["metrics"]["bleu"] == quality.corpus_bleu(
        [text.lstrip().split("\n")[0].strip() for text in record["texts"]],
        ["y"] * 5)
  # What has a result is not run again.
  again = rsd.measure(config, pair, methods, examples, tmp_path / "results")
  assert again == found
  # From a queue come the same texts; the three short prompts have one.
  config.queue = 4
  with tiny.quickly_compiled():
    queued, = rsd.measure(config, pair, methods[:1], examples,
                          tmp_path / "queued")
  assert queued["texts"] == found[0]["texts"]
  assert len(queued["tokens"]) == 2
  assert 0 <= queued["metrics"]["idle_share"][0] < 1


def test_bleu_of_a_corpus():
  texts = ["the cat sat on the mat today", "a dog ran very far away", "yes"]
  references = ["the cat sat on a mat today", "a dog ran far away", "no"]
  value, low, high = quality.corpus_bleu(texts, references)
  assert value == pytest.approx(
      sacrebleu.corpus_bleu(texts, [references]).score, abs=1e-5)
  assert low < value < high
  assert quality.corpus_bleu(texts[:1], texts[:1]) == [100, None, None]


def test_scores():
  examples = tasks.Examples(
      [[1]] * 2, ["a cat sat", "no dog"], stop="\n",
      metrics=("rouge_2", "rouge_l"))
  got = tasks.score(examples, ["\n a cat ran\nand more", "dog"])
  np.testing.assert_allclose(got["rouge_2"], [25, 0, 50])
  assert got["rouge_l"][0] == pytest.approx(200 / 3, abs=1e-4)
  assert tasks.score(tasks.Examples([[1]]), None) == {}


def test_report_has_figures_of_texts(tmp_path):
  figures = {name: [1.0, None, None] for name in (
      "block_efficiency", "mbsu", "token_rate", "token_rate_ratio", "log_prob",
      "idle_share")}
  record = {"method": "autoregressive", "temperature": 0.5, "depth": 0,
            "tree_nodes": 0, "emitted": [3], "log_prob": [-1.0],
            "compile_seconds": 1.0, "metrics": {
                **figures, "acceptance_by_depth": [], "acceptance_by_rank": [],
                "bleu": [12.3, 10.0, 14.0]}}
  rows = report.rows([record], {}, (0.5,))
  report.write(tmp_path / "summary.md", rows, "Task x: 2 were left out.")
  text = (tmp_path / "summary.md").read_text()
  assert "| compile, s | BLEU |" in text and "12.30 [10.00, 14.00] |" in text
  assert "\n\nTask x: 2 were left out.\n\n" in text
  assert "2 were left out" in report.terminal(rows, "Task x: 2 were left out.")


@pytest.mark.parametrize("make, presets, chat_", [
    (rsd_llama2.get_config, "7b,xsum", False),
    (rsd_llama2.get_config, "70b-chat,dolly", True),
    (rsd_opt.get_config, "13b,wmt18_de_en", False)])
def test_configs_of_the_paper(make, presets, chat_):
  config = make(presets)
  assert config.chat == chat_
  assert config.task in config.tasks and config.tasks[config.task].metrics
  with pytest.raises(ValueError, match="'1t' is not one of"):
    make("1t,xsum")
  with pytest.raises(ValueError, match="'' is not one of xsum"):
    make(presets.split(",")[0])


@pytest.mark.skipif(not pathlib.Path(_DATA, "prompts").is_dir(),
                    reason="DECODING_JAX_DATA names no folder of public files")
@pytest.mark.parametrize("task, name, count", [
    ("spec_bench", "prompts/spec_bench_question.jsonl", 480),
    ("mt_bench", "prompts/mt_bench_question.jsonl", 80),
    ("humaneval", "prompts/HumanEval.jsonl.gz", 164),
    ("mbpp", "prompts/mbpp.jsonl", 974),
    ("gsm8k", "prompts/gsm8k_test.jsonl", 1319),
    ("dolly", "prompts/dolly_151.jsonl", 151),
    ("wmt18_de_en", "prompts/wmt_ende_1000.json", 1000),
    ("text", "text/tinystories_1000.json", 40),
    ("text", "text/wikitext2_valid.txt", 40),
])
def test_public_files(task, name, count, pair):
  config = _config(task, pathlib.Path(_DATA) / name, longest_prompt=512,
                   too_long="left")
  config.prompts = count
  got = tasks.load(config, pair)
  assert len(got.prompts) == count
  assert max(map(len, got.prompts)) <= 512
  assert got.references is None or all(got.references)
