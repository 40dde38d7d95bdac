"""Tasks: their files, templates and lengths."""

import gzip
import json
import os
import pathlib
import sys
import types

import pytest

from configs import (
    rsd as rsd_config, rsd_llama2, rsd_opt, tasks as tasks_config)
from experiments.app import launch
from experiments.data import prompt_tasks, prompt_templates, python_corpus
from experiments.scoring import text_metrics
from models.text import tokenizer_files, tokenizers
from support.tiny_tasks import jsonl, make_config, make_pair

_DATA = os.environ.get("DECODING_JAX_DATA", "")
# A record of each task as its files have it, and what its prompt ends with.
_RECORDS = {
    "xsum": ({"document": "A long day.", "summary": "Day.", "id": "1"},
             "Article: A long day.\nSummary in one sentence:", "Day."),
    "wmt18_de_en": ({"translation": {"de": "Ja.", "en": "Yes."}},
                    "\n\nGerman: Ja.\nEnglish:", "Yes."),
    "cnn_dailymail": ({"article": "A long day.", "highlights": "Day.",
                       "id": "1"}, "A long day.", None),
    "dolly": ({"instruction": "Why?", "context": "", "response": "So.",
               "category": "open_qa"},
              "### Instruction:\nWhy?\n\n### Response:\n", "So."),
    "spec_bench": ({"question_id": 1, "category": "qa",
                    "turns": ["Who?", "And?"]}, "Who?\n", None),
    "questions": ({"question_id": 1, "category": "chat", "turns": ["Who?"]},
                  "Who?\n", None),
    "speed_bench": ({"question_id": "7f", "category": "multilingual",
                     "sub_category": "de", "turns": ["Wer?", "Und?"],
                     "source": "x", "src_id": "1", "difficulty": "easy",
                     "multiturn": True}, "Wer?\n", None),
    "math500": ({"turns": ["Find $x$."]}, "Find $x$.\n", None),
    "livecodebench": ({"turns": ["Swap cards."]}, "Swap cards.\n", None),
    "arena_hard": ({"turns": ["Write zig."]}, "Write zig.\n", None),
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


@pytest.fixture(name="pair")
def _pair():
  return make_pair()


@pytest.fixture(name="load")
def _load(pair):
  """Loads the examples of a config, and of no more than some prompts."""
  def load(config, **update):
    config.update(update)
    return prompt_tasks.load(config, pair)

  return load


def texts(pair, got):
  return [pair.tokenizer.decode(x) for x in got.prompts]


@pytest.mark.parametrize("task", sorted(tasks_config.get_tasks()))
def test_readers(task, pair, load, tmp_path):
  record, end, reference = _RECORDS[task]
  got = load(make_config(task, jsonl(tmp_path / "data.jsonl", record)))
  assert texts(pair, got)[0].endswith(end)
  assert got.references == (None if reference is None else [reference])
  assert got.eos_id == (0,)
  assert set(got.metrics) <= set(text_metrics.CORPUS)
  assert got.note.startswith(f"Task {task}: 1 prompts of the first 1 of 1 ex")


@pytest.mark.parametrize("task, value, prompt, reference", [
    ("dolly", {"prompt": "### Response:", "answer": "So."}, "### Response:\n",
     "So."),
    ("dolly", {"instruction": "Why?", "context": "It is.", "response": "So."},
     tasks_config._ALPACA.format(  # pylint: disable=protected-access
         instruction="Why?", context="### Input:\nIt is.\n\n"), "So."),
    ("wmt18_de_en", "Translate: Ja", "Translate: Ja", None),
    ("mt_bench", {"prompt": ["Who?", "And?"]}, "Who?\n", None),
    ("math500", {"problem": "Find $x$.", "answer": "1", "level": 2},
     "Find $x$.\n", None),
    ("arena_hard", {"uid": "a", "category": "hard_prompt", "prompt": "Write."},
     "Write.\n", None),
    *((task, {"turns": ["Solve it."]}, "Solve it.\n", None)
      for task in ("gsm8k", "humaneval", "mbpp")),
    # Braces in a record are text.
    ("spec_bench", {"turns": ["a {b} {0} {"]}, "a {b} {0} {\n", None),
])
def test_other_formats(task, value, prompt, reference, pair, load, tmp_path):
  path = tmp_path / "data.json"
  path.write_text(json.dumps([value]))
  got = load(make_config(task, path))
  assert texts(pair, got) == [prompt]
  assert got.references == (reference and [reference])


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.json", "a.jsonl.gz"])
def test_text_goes_on_from_line_starts(name, pair, load, tmp_path):
  text = "one two three\n  four five six\n"
  data = text
  if ".json" in name:
    data = json.dumps([text] if name == "a.json" else {"text": text})
  data = data.encode()
  path = tmp_path / name
  path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
  got = load(make_config("text", path, prompt_length=5, max_new_tokens=6),
             prompts=2)
  assert sorted(texts(pair, got)) == ["  fou", "one t"]
  assert got.eos_id is None and not got.note


def test_the_default_is_what_it_was(pair, load):
  assert load(rsd_config.get_config(), prompt_length=8, max_new_tokens=4,
              prompts=3) == prompt_tasks.Examples(
                  python_corpus.prompts(pair.tokenizer, 3, 8, 4, seed=0))


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
def test_wrong_files(name, text, message, load, tmp_path):
  path = tmp_path / name
  path.write_text(text)
  with pytest.raises(launch.UserError, match=message):
    load(make_config("spec_bench", path), prompts=2)


def test_no_format_fits(load, tmp_path):
  path = jsonl(tmp_path / "a.jsonl", {"de": "Ja."})
  with pytest.raises(launch.UserError, match=(
      r"line 1 has none of the formats .*'translation.de'.*; there are de\.")):
    load(make_config("wmt18_de_en", path))


@pytest.mark.parametrize("task, update, message", [
    ("squad", {}, "task='squad' is not one of 'python', 'text', "),
    ("spec_bench", {"too_long": "middle"}, "too_long='middle' is not one of"),
    ("spec_bench", {"buckets": 0}, "buckets=0"),
    ("python", {"seed": -1}, "seed=-1: 0 to"),
    ("python", {"seed": 2**32}, "seed=4294967296: 0 to 4294967295 is allowed"),
    ("spec_bench", {"longest_prompt": -1}, "longest_prompt=-1"),
    ("spec_bench", {"max_new_tokens": 4096}, "max_length=4096"),
    ("spec_bench", {"prompts": 9}, "prompts=9 are too many. .* 1 prompts of"),
    ("spec_bench", {"data": "none.jsonl"}, "none.jsonl"),
    ("spec_bench", {"data": ""}, "data is empty, and the task has no data set"),
    ("text", {"data": ""}, "data is empty: task='text' needs a file"),
    ("python", {"prompt_length": 10**6}, "1000000 tokens .* max_length=4096"),
    ("spec_bench", {"chat": True}, "has no chat template"),
    ("spec_bench", {"tasks": {"spec_bench": {"metrics": ("cider",)}}},
     "metrics='cider' is not one of 'bleu'"),
    ("spec_bench", {"tasks": {"spec_bench": {"formats": {"turns": {
        "template": "{trun}"}}}}}, "template='{trun}' is not a template of .*"),
])
def test_wrong_settings(task, update, message, load, tmp_path):
  path = jsonl(tmp_path / "a.jsonl", {"turns": ["x"]})
  with pytest.raises(launch.UserError, match=message):
    load(make_config(task, path), **update)


@pytest.mark.parametrize("side, lengths, what", [
    ("leave_out", [3, 5], "2 longer ones were left out."),
    ("left", [3, 5, 5, 5], "of 2 longer ones the left end was cut off."),
    ("right", [3, 5, 5, 5], "of 2 longer ones the right end was cut off."),
])
def test_prompts_without_room(side, lengths, what, load, tmp_path):
  path = jsonl(tmp_path / "a.jsonl",
               *({"turns": ["ab" * n]} for n in (1, 2, 3, 4)))
  config = make_config("spec_bench", path, longest_prompt=5, too_long=side)
  got = load(config, prompts=len(lengths))
  assert sorted(map(len, got.prompts)) == lengths
  assert "there is room for 5 tokens" in got.note
  if side != "leave_out":
    assert got.note.endswith(what)
  else:
    with pytest.raises(launch.UserError, match=what):
      load(config, prompts=3)


def test_room_is_the_models_own(pair):
  large, small = (types.SimpleNamespace(max_length=n) for n in (64, 32))
  pair = pair._replace(target=large, draft=small)
  config = make_config("spec_bench", "", max_new_tokens=12)
  for longest, room in ((config.longest_prompt, 20), (7, 7), (99, 20)):
    config.longest_prompt = longest
    assert prompt_tasks.room(config, pair) == room


def test_shortening_keeps_what_texts_begin_with(pair):
  other = type(pair.tokenizer).from_str(pair.tokenizer.to_str())
  tokenizer_files.begin_with(other, tokenizers.EOS)
  encoding = other.encode("abcdef")
  decode = lambda side: other.decode(
      prompt_templates.shorten(encoding, 4, side), skip_special_tokens=False)
  assert decode("left") == "<|endoftext|>def"
  assert decode("right") == "<|endoftext|>abc"
  assert prompt_templates.shorten(encoding, 4, "leave_out") is None
  assert prompt_templates.shorten(encoding, 7, "leave_out") == encoding.ids
  assert prompt_templates.shorten(encoding, None, "left") == encoding.ids


def test_more_examples_extend_fewer(load, tmp_path):
  path = jsonl(tmp_path / "a.jsonl", *({"turns": [str(n)]} for n in range(9)))
  config = make_config("spec_bench", path)
  nine, four = (load(config, prompts=n).prompts for n in (9, 4))
  assert four == nine[:4] != load(config, seed=1).prompts


def _of_categories(folder, *names, **update):
  """A config of prompts of categories, each the text of a prompt."""
  path = jsonl(folder / "a.jsonl", *(
      {"turns": [f"{name}{i}"], "category": name}
      for i, name in enumerate(names)))
  config = make_config("spec_bench", path)
  config.update(update)
  return config


def test_one_category(pair, load, tmp_path):
  config = _of_categories(tmp_path, *["rag", "qa"] * 3, prompts=3,
                          category="qa")
  got = load(config)
  assert set(texts(pair, got)) == {"qa1\n", "qa3\n", "qa5\n"}
  assert "3 prompts of the first 3 of 3 examples of category qa" in got.note
  assert got.categories == ["qa"] * 3
  with pytest.raises(launch.UserError, match="'maths' is not one of 'rag', '"):
    load(config, category="maths")


def test_categories_in_groups(pair, load, tmp_path):
  got = load(_of_categories(tmp_path, "stem", "rag", "math", prompts=3))
  assert dict(zip(texts(pair, got), got.categories)) == {
      "stem0\n": "mt_bench", "math2\n": "mt_bench", "rag1\n": "rag"}


def test_categories_in_turn(load, tmp_path):
  config = _of_categories(tmp_path, *["qa"] * 6, "rag", "rag", "math",
                          prompts=7, balanced=True)
  got = load(config)
  assert [sorted(part) for part in (
      got.categories[:3], got.categories[3:5], got.categories[5:])] == [
          ["mt_bench", "qa", "rag"], ["qa", "rag"], ["qa", "qa"]]
  assert got.note.startswith("Task spec_bench: 7 prompts of the first 7 of 9 "
                             "examples, in an order drawn with seed 0, each "
                             "category in turn")
  assert load(config, prompts=4).prompts == got.prompts[:4]


def test_questions_of_our_own(load):
  got = load(make_config("questions", "", balanced=True), prompts=12)
  assert sorted(set(got.categories)) == [
      "chat", "code", "math_reasoning", "qa", "summarization", "translation"]
  # Two of each: half of them are one of each.
  assert len(set(got.categories[:6])) == 6 == len(set(got.categories[6:]))


def test_records_that_refer_to_other_data_sets_are_left_out(load, tmp_path):
  text = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
  path = jsonl(tmp_path / "a.jsonl", {"turns": [text], "category": "math"},
               {"turns": ["Who?"], "category": "qa"})
  got = load(make_config("speed_bench", path))
  assert got.categories == ["qa"] and "of 1 examples" in got.note
  jsonl(path, {"turns": [text], "category": "math"})
  with pytest.raises(launch.UserError, match="all 1 examples refer to other "
                     "data sets .'FULL BENCHMARK DATA"):
    load(make_config("speed_bench", path))
  # Other tasks have texts that are what they are.
  assert load(make_config("spec_bench", path)).prompts


@pytest.fixture(name="asked")
def _asked(monkeypatch):
  """Arguments that the package of data sets is asked with, for one record."""
  asked = []

  def load_dataset(*args, **kwargs):
    if args[0] == "me/none":
      raise OSError("no network")
    asked.append((args, kwargs))
    return [{"category": "qa", "turns": ["Who?"],
             "translation": {"de": "Ja.", "en": "Yes."}}]

  monkeypatch.setitem(sys.modules, "datasets",
                      types.SimpleNamespace(load_dataset=load_dataset))
  return asked


def test_data_sets_by_name(load, asked, monkeypatch):
  config = make_config("speed_bench", "")
  assert load(config).categories == ["qa"]
  config.tasks.speed_bench.dataset.name = "throughput_1k"
  load(config)
  assert load(make_config("wmt18_de_en", "")).references == ["Yes."]
  load(make_config("wmt18_de_en", "hub:me/mine"))
  assert asked == [(names, {"split": "test"}) for names in (
      ("nvidia/SPEED-Bench", "qualitative"),
      ("nvidia/SPEED-Bench", "throughput_1k"), ("wmt/wmt18", "de-en"),
      ("me/mine", "de-en"))]
  with pytest.raises(launch.UserError, match="'me/none' .*loaded: no network"):
    load(make_config("wmt18_de_en", "hub:me/none"))
  monkeypatch.setitem(sys.modules, "datasets", None)
  with pytest.raises(launch.UserError, match="need the package datasets: pip"):
    load(make_config("xsum", ""))


@pytest.mark.parametrize("make, presets, chat_", [
    (rsd_llama2.get_config, "7b,xsum", False),
    (rsd_llama2.get_config, "70b-chat,dolly", True),
    (rsd_opt.get_config, "13b,wmt18_de_en", False)])
def test_configs_of_the_paper(make, presets, chat_):
  config = make(presets)
  assert config.chat == chat_
  assert (*config.temperatures, config.top_p) == (
      (1.0, 0.95) if config.task == "dolly" else (0.3, 1.0))
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
def test_public_files(task, name, count, load):
  config = make_config(task, pathlib.Path(_DATA) / name, longest_prompt=512,
                       too_long="left")
  got = load(config, prompts=count)
  assert len(got.prompts) == count and max(map(len, got.prompts)) <= 512
  assert got.references is None or all(got.references)


def test_a_task_of_ones_own(pair, load, tmp_path, monkeypatch):
  (tmp_path / "own_task_of_a_test.py").write_text("""
def make(mark="?"):
  return {"formats": {"one": {"fields": {"question": "q", "answer": "a"},
                              "template": "{question}" + mark,
                              "answer": "{answer}"}}}

def number():
  return 3
""")
  monkeypatch.syspath_prepend(tmp_path)
  name = "own_task_of_a_test"
  path = jsonl(tmp_path / "a.jsonl", {"q": "Who", "a": "I"})
  got = load(make_config(f"{name}:make(mark='!')", path))
  assert texts(pair, got) == ["Who!"]
  assert got.references == ["I"] and got.eos_id == (0,)
  for task, message in ((f"{name}:number", "type int: a dict is needed"),
                        (f"{name}:mkae", "did you mean make"),
                        (f"{name}:make(1, 2)", "make takes mark")):
    with pytest.raises(launch.UserError, match=message):
      load(make_config(task, path))
