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
                   "test": "def check(f):\n  f()\n", "entry_point": "f",
                   "canonical_solution": "  pass\n"}, "def f():\n",
                  "def f():\n{completion}\n\ndef check(f):\n  f()\n\ncheck(f)"),
    "mbpp": ({"text": "Write f.", "code": "f = 1", "task_id": 1,
              "test_list": ["assert f == 1", "assert f"]},
             "here is your task: Write f. Your code should pass these tests:"
             "\n\nassert f == 1\nassert f\n[BEGIN]\n",
             "{completion}\nassert f == 1\nassert f"),
    "gsm8k": ({"question": "1 + 1?", "answer": "#### 2"},
              "\n\nQuestion: 1 + 1?\nAnswer:", "#### 2"),
}


@pytest.fixture(name="pair")
def _pair():
  return make_pair()


@pytest.mark.parametrize("task", sorted(tasks_config.get_tasks()))
def test_readers(task, pair, tmp_path):
  record, end, reference = _RECORDS[task]
  path = jsonl(tmp_path / "data.jsonl", record)
  got = prompt_tasks.load(make_config(task, path), pair)
  assert pair.tokenizer.decode(got.prompts[0]).endswith(end)
  assert got.references == (None if reference is None else [reference])
  assert got.eos_id == (0,)
  assert set(got.metrics) <= set(text_metrics.CORPUS) - {"pass_at_1"}
  config = make_config(task, path, run_code=True)
  assert ("pass_at_1" in prompt_tasks.load(config, pair).metrics) == (
      task in ("humaneval", "mbpp"))
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
def test_other_formats(task, value, prompt, reference, pair, tmp_path):
  path = tmp_path / "data.json"
  path.write_text(json.dumps([value]))
  got = prompt_tasks.load(make_config(task, path), pair)
  assert pair.tokenizer.decode(got.prompts[0]) == prompt
  assert got.references == (reference and [reference])


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.json", "a.jsonl.gz"])
def test_text_goes_on_from_line_starts(name, pair, tmp_path):
  text = "one two three\n  four five six\n"
  data = text
  if ".json" in name:
    data = json.dumps([text] if name == "a.json" else {"text": text})
  data = data.encode()
  path = tmp_path / name
  path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
  config = make_config("text", path, prompt_length=5, max_new_tokens=6)
  config.prompts = 2
  got = prompt_tasks.load(config, pair)
  assert sorted(map(pair.tokenizer.decode, got.prompts)) == ["  fou", "one t"]
  assert got.eos_id is None and not got.note


def test_the_default_is_what_it_was(pair):
  config = rsd_config.get_config()
  config.update(prompt_length=8, max_new_tokens=4, prompts=3)
  got = prompt_tasks.load(config, pair)
  assert got == prompt_tasks.Examples(
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
def test_wrong_files(name, text, message, pair, tmp_path):
  path = tmp_path / name
  path.write_text(text)
  config = make_config("spec_bench", path)
  config.prompts = 2
  with pytest.raises(launch.UserError, match=message):
    prompt_tasks.load(config, pair)


def test_no_format_fits(pair, tmp_path):
  path = jsonl(tmp_path / "a.jsonl", {"de": "Ja."})
  with pytest.raises(launch.UserError, match=(
      r"line 1 has none of the formats .*'translation.de'.*; there are de\.")):
    prompt_tasks.load(make_config("wmt18_de_en", path), pair)


@pytest.mark.parametrize("task, update, message", [
    ("squad", {}, "task='squad' is not one of python, text, "),
    ("spec_bench", {"too_long": "middle"}, "too_long='middle' is not one of"),
    ("spec_bench", {"buckets": 0}, "buckets=0"),
    ("python", {"category": "math"}, "category='math' has no effect on"),
    ("spec_bench", {"system": "x"}, "system='x' has no effect without"),
    ("spec_bench", {"max_new_tokens": 4096}, "max_length=4096"),
    ("spec_bench", {"prompts": 9}, "prompts=9 are too many. .* 1 prompts of"),
    ("spec_bench", {"data": "none.jsonl"}, "none.jsonl"),
    ("spec_bench", {"data": ""}, "data is empty, and the task has no data set"),
    ("text", {"data": ""}, "data is empty: task='text' needs a file"),
    ("python", {"prompt_length": 10**6}, "1000000 tokens .* max_length=4096"),
    ("spec_bench", {"chat": True}, "has no chat template"),
    ("spec_bench", {"tasks": {"spec_bench": {"metrics": ("cider",)}}},
     "metrics='cider' is not one of bleu"),
    ("spec_bench", {"tasks": {"spec_bench": {"formats": {"turns": {
        "template": "{trun}"}}}}}, "template='{trun}' is not a template of .*"),
])
def test_wrong_settings(task, update, message, pair, tmp_path):
  path = jsonl(tmp_path / "a.jsonl", {"turns": ["x"]})
  config = make_config(task, path)
  config.update(update)
  with pytest.raises(launch.UserError, match=message):
    prompt_tasks.load(config, pair)


@pytest.mark.parametrize("side, lengths, what", [
    ("leave_out", [3, 5], "2 longer ones were left out."),
    ("left", [3, 5, 5, 5], "of 2 longer ones the left end was cut off."),
    ("right", [3, 5, 5, 5], "of 2 longer ones the right end was cut off."),
])
def test_prompts_without_room(side, lengths, what, pair, tmp_path):
  path = jsonl(tmp_path / "a.jsonl",
               *({"turns": ["ab" * n]} for n in (1, 2, 3, 4)))
  config = make_config("spec_bench", path, longest_prompt=5, too_long=side)
  config.prompts = len(lengths)
  got = prompt_tasks.load(config, pair)
  assert sorted(map(len, got.prompts)) == lengths
  assert "there is room for 5 tokens" in got.note
  if side != "leave_out":
    assert got.note.endswith(what)
  else:
    config.prompts = 3
    with pytest.raises(launch.UserError, match=what):
      prompt_tasks.load(config, pair)


def test_room_is_the_models_own(pair):
  large, small = (types.SimpleNamespace(max_length=n) for n in (64, 32))
  pair = pair._replace(target=large, draft=small)
  config = make_config("spec_bench", "", max_new_tokens=12)
  assert prompt_tasks.room(config, pair) == 20
  config.longest_prompt = 7
  assert prompt_tasks.room(config, pair) == 7
  config.longest_prompt = 99
  assert prompt_tasks.room(config, pair) == 20


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


def test_more_examples_extend_fewer(pair, tmp_path):
  path = jsonl(tmp_path / "a.jsonl", *({"turns": [str(n)]} for n in range(9)))
  config = make_config("spec_bench", path)
  config.prompts = 9
  all_of_them = prompt_tasks.load(config, pair).prompts
  config.prompts = 4
  assert prompt_tasks.load(config, pair).prompts == all_of_them[:4]
  config.seed = 1
  assert prompt_tasks.load(config, pair).prompts != all_of_them[:4]


def _of_categories(folder, *names, **update):
  """A config of prompts of categories, each the text of a prompt."""
  path = jsonl(folder / "a.jsonl", *(
      {"turns": [f"{name}{i}"], "category": name}
      for i, name in enumerate(names)))
  config = make_config("spec_bench", path)
  config.update(update)
  return config


def test_one_category(pair, tmp_path):
  config = _of_categories(tmp_path, *["rag", "qa"] * 3, prompts=3,
                          category="qa")
  got = prompt_tasks.load(config, pair)
  assert {pair.tokenizer.decode(p) for p in got.prompts} == {
      "qa1\n", "qa3\n", "qa5\n"}
  assert "3 prompts of the first 3 of 3 examples of category qa" in got.note
  assert got.categories == ["qa"] * 3
  config.category = "maths"
  with pytest.raises(launch.UserError, match="'maths' is not one of rag, "):
    prompt_tasks.load(config, pair)


def test_categories_in_groups(pair, tmp_path):
  got = prompt_tasks.load(
      _of_categories(tmp_path, "stem", "rag", "math", prompts=3), pair)
  groups = dict(zip(map(pair.tokenizer.decode, got.prompts), got.categories))
  assert groups == {"stem0\n": "mt_bench", "math2\n": "mt_bench",
                    "rag1\n": "rag"}


def test_categories_in_turn(pair, tmp_path):
  config = _of_categories(tmp_path, *["qa"] * 6, "rag", "rag", "math",
                          prompts=7, balanced=True)
  got = prompt_tasks.load(config, pair)
  assert [sorted(part) for part in (
      got.categories[:3], got.categories[3:5], got.categories[5:])] == [
          ["mt_bench", "qa", "rag"], ["qa", "rag"], ["qa", "qa"]]
  assert got.note.startswith("Task spec_bench: 7 prompts of the first 7 of 9 "
                             "examples, in an order drawn with seed 0, each "
                             "category in turn")
  config.prompts = 4
  assert prompt_tasks.load(config, pair).prompts == got.prompts[:4]


def test_questions_of_our_own(pair):
  config = make_config("questions", "", balanced=True)
  config.prompts = 12
  got = prompt_tasks.load(config, pair)
  assert sorted(set(got.categories)) == [
      "chat", "code", "math_reasoning", "qa", "summarization", "translation"]
  # Two of each: half of them are one of each.
  assert len(set(got.categories[:6])) == 6 == len(set(got.categories[6:]))


def test_records_that_refer_to_other_data_sets_are_left_out(pair, tmp_path):
  text = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
  path = jsonl(tmp_path / "a.jsonl", {"turns": [text], "category": "math"},
               {"turns": ["Who?"], "category": "qa"})
  got = prompt_tasks.load(make_config("speed_bench", path), pair)
  assert got.categories == ["qa"] and "of 1 examples" in got.note
  jsonl(path, {"turns": [text], "category": "math"})
  with pytest.raises(launch.UserError, match="all 1 examples refer to other "
                     "data sets .'FULL BENCHMARK DATA"):
    prompt_tasks.load(make_config("speed_bench", path), pair)
  # Other tasks have texts that are what they are.
  assert prompt_tasks.load(make_config("spec_bench", path), pair).prompts


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


def test_data_sets_by_name(pair, asked, monkeypatch):
  config = make_config("speed_bench", "")
  assert prompt_tasks.load(config, pair).categories == ["qa"]
  config.tasks.speed_bench.dataset.name = "throughput_1k"
  prompt_tasks.load(config, pair)
  got = prompt_tasks.load(make_config("wmt18_de_en", ""), pair)
  assert got.references == ["Yes."]
  prompt_tasks.load(make_config("wmt18_de_en", "hub:me/mine"), pair)
  assert asked == [(names, {"split": "test"}) for names in (
      ("nvidia/SPEED-Bench", "qualitative"),
      ("nvidia/SPEED-Bench", "throughput_1k"), ("wmt/wmt18", "de-en"),
      ("me/mine", "de-en"))]
  with pytest.raises(launch.UserError, match="'me/none' .*loaded: no network"):
    prompt_tasks.load(make_config("wmt18_de_en", "hub:me/none"), pair)
  monkeypatch.setitem(sys.modules, "datasets", None)
  with pytest.raises(launch.UserError, match="need the package datasets: pip"):
    prompt_tasks.load(make_config("xsum", ""), pair)


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
def test_public_files(task, name, count, pair):
  limits = {} if task == "text" else {"longest_prompt": 512,
                                      "too_long": "left"}
  config = make_config(task, pathlib.Path(_DATA) / name, **limits)
  config.prompts = count
  got = prompt_tasks.load(config, pair)
  assert len(got.prompts) == count
  assert max(map(len, got.prompts)) <= 512
  assert got.references is None or all(got.references)


def test_a_task_of_ones_own(pair, tmp_path, monkeypatch):
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
  got = prompt_tasks.load(make_config(f"{name}:make(mark='!')", path), pair)
  assert [pair.tokenizer.decode(x) for x in got.prompts] == ["Who!"]
  assert got.references == ["I"] and got.eos_id == (0,)
  for task, message in ((f"{name}:number", "type int: a dict is needed"),
                        (f"{name}:mkae", "did you mean make"),
                        (f"{name}:make(1, 2)", "make takes mark")):
    with pytest.raises(launch.UserError, match=message):
      prompt_tasks.load(make_config(task, path), pair)
