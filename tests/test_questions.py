"""Prompts of a file, of `experiments.complete`."""

import json

from absl import flags
from absl.testing import flagsaver
import pytest

import helpers
from experiments import launch
from experiments import questions


@pytest.fixture(name="load")
def _load(tmp_path):
  """The texts of a file of some content, by its name and flags."""
  tokenizer = helpers.chat_model(tmp_path)

  def load(name, content, **values):
    path = tmp_path / name
    path.write_text(content)
    with flagsaver.as_parsed(**{"prompts": str(path), **values}):
      return [tokenizer.decode(x) for x in questions.load(tokenizer, tmp_path)]

  flags.FLAGS.mark_as_parsed()
  yield load
  flags.FLAGS.unparse_flags()


def test_formats(load):
  assert load("a.txt", "Hi\n\nHi there\n") == ["Hi", "Hi there"]
  assert load("a.jsonl", '"Hi"\n{"prompt": "there\\nHi"}\n') == [
      "Hi", "there\nHi"]
  assert load("a.json", '[{"turns": [{"q": "Hi"}]}]', field="turns.0.q") == [
      "Hi"]


def test_chats(load):
  messages = [{"role": "user", "content": "Hi"},
              {"role": "assistant", "content": "there"},
              {"role": "user", "content": "Hi there"}]
  lines = "\n".join(map(json.dumps, ({"prompt": messages}, {"prompt": "Hi"})))
  assert load("a.jsonl", lines, chat="true", system="there") == [
      "[system]there[user]Hi[assistant]there[user]Hi there[assistant]",
      "[system]there[user]Hi[assistant]"]


@pytest.mark.parametrize("name, content, values, message", [
    ("a.txt", "Hi", {"prompts": ""}, "--prompts is empty: a file is needed"),
    ("a.txt", "Hi", {"prompts": "nowhere.txt"}, "--prompts=nowhere.txt: .*No"),
    ("a.txt", "\n", {}, "a.txt' is empty: an example is needed"),
    ("a.jsonl", '{"text": "Hi"}', {}, "line 1 has no field 'prompt'; there"),
    ("a.jsonl", '"Hi"\n5', {}, "line 2 is of type int: a text or an object"),
    ("a.jsonl", '"Hi"\n""', {}, "line 2: its prompt is empty"),
    ("a.jsonl", '"Hi"', {"system": "there"}, "--system='there' needs --chat"),
    ("a.jsonl", '{"prompt": [{"role": "user"}]}', {"chat": "true"},
     "line 1: the chat template of")])
def test_what_is_wrong_is_named(load, name, content, values, message):
  with pytest.raises(launch.UserError, match=message):
    load(name, content, **values)
