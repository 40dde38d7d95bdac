"""Prompts as texts and as turns of a chat, one or those of a file."""

import datetime
import json
import re

from absl.testing import flagsaver
import pytest

from experiments.app import launch
from experiments.flags import prompt_flags
from models.text import chat_template
from support import helpers


pytestmark = pytest.mark.usefixtures("parsed_flags")


@pytest.fixture(name="load")
def _load(tmp_path):
  """The texts of a file of some content, by its name and flags."""
  tokenizer = helpers.chat_model(tmp_path)

  def load(name, content, now=None, **values):
    path = tmp_path / name
    path.write_text(content)
    source, field = (values.pop(x, default) for x, default in (
        ("prompts", str(path)), ("field", "prompt")))
    with flagsaver.as_parsed(**values):
      return [tokenizer.decode(x) for x in prompt_flags.load(
          source, field, tokenizer, tmp_path, now)]

  return load


def test_formats(load):
  assert load("a.txt", "Hi\n\nHi there\n") == ["Hi", "Hi there"]
  assert load("a.jsonl", '"Hi"\n{"prompt": "there\\nHi"}\n') == [
      "Hi", "there\nHi"]
  assert load("a.json", '[{"turns": [{"q": "Hi"}]}]', field="turns.0.q") == [
      "Hi"]


def test_lines_end_at_line_feeds_alone(load):
  assert load("a.txt", "Hi\x0c\u2028Hi\r\nthere\x85Hi\n") == load(
      "a.json", json.dumps(["Hi\x0c\u2028Hi", "there\x85Hi"]))


def test_chats(load):
  messages = [{"role": "user", "content": "Hi"},
              {"role": "assistant", "content": "there"},
              {"role": "user", "content": "Hi there"}]
  lines = "\n".join(map(json.dumps, ({"prompt": messages}, {"prompt": "Hi"})))
  assert load("a.jsonl", lines, chat="true", system="there") == [
      "[system]there[user]Hi[assistant]there[user]Hi there[assistant]",
      "[system]there[user]Hi[assistant]"]
  line = json.dumps({"asked": [{"turns": messages[:1]}]})
  assert load("a.jsonl", line, chat="true", field="asked.0.turns") == [
      "[user]Hi[assistant]"]
  # A list of texts is lines, with `--chat` and without.
  line = json.dumps({"prompt": ["Hi", "there"]})
  assert load("a.jsonl", line) == ["Hi\nthere"]
  assert load("a.jsonl", line, chat="true") == ["[user]Hi\nthere[assistant]"]


def test_arguments_of_the_template(load, tmp_path):
  (tmp_path / chat_template.FILE).write_text("{{ enable_thinking }}")
  for value in ("false", "true"):
    assert load("a.txt", "Hi", chat="true", chat_template_args=(
        '{"enable_thinking": %s}' % value)) == [value.title()]


def test_chats_of_a_date(load, tmp_path):
  (tmp_path / chat_template.FILE).write_text("{{ strftime_now('%Y') }}")
  assert load("a.txt", "Hi", datetime.datetime(2001, 5, 10), chat="true") == [
      "2001"]


@pytest.mark.parametrize("name, content, values, message", [
    ("a.txt", "Hi", {"prompts": ""}, "--prompts is empty: a file is needed"),
    ("a.txt", "Hi", {"prompts": "nowhere.txt"}, "--prompts=nowhere.txt: .*No"),
    ("a.txt", "\n", {}, "--prompts='.*a.txt' is empty: an example is needed"),
    ("a.jsonl", r'"\ud83d"', {}, "line 1: character 1 is .*surrogate"),
    ("a.jsonl", '{"text": "Hi"}', {},
     "--field=prompt: .*line 1 has no field 'prompt'; there"),
    ("a.jsonl", '"Hi"\n5', {}, "line 2 is of type int: a text or an object"),
    ("a.jsonl", '"Hi"\n""', {}, "line 2: its prompt is empty"),
    ("a.jsonl", '{"prompt": []}', {"chat": "true"}, "its prompt is empty"),
    ("a.jsonl", '"Hi"', {"system": "there"}, "--system='there' needs --chat"),
    ("a.jsonl", '"Hi"', {"chat_template_args": "{}"},
     "--chat_template_args='{}' needs --chat"),
    *(("a.jsonl", '"Hi"', {"chat": "true", "chat_template_args": x},
       f"--chat_template_args='{re.escape(x)}': a JSON object is needed")
      for x in ("{", "[1]", '{"messages": []}')),
    ("a.jsonl", '{"prompt": [{"role": "user"}]}', {"chat": "true"},
     "line 1: .*: the chat template refuses")])
def test_what_is_wrong_is_named(load, name, content, values, message):
  with pytest.raises(launch.UserError, match=message):
    load(name, content, **values)


@pytest.fixture(name="encode")
def _encode(tmp_path):
  """The text that a prompt is decoded as."""
  tokenizer = helpers.chat_model(tmp_path)

  def encode(prompt, target=tmp_path, **values):
    with flagsaver.as_parsed(**values):
      return tokenizer.decode(prompt_flags.encode(prompt, tokenizer, target))

  return encode


def test_prompts(encode):
  assert encode(prompt="Hi") == "Hi"
  assert encode(prompt="Hi", chat="true") == "[user]Hi[assistant]"
  assert encode(prompt="Hi", chat="true", system="Be brief.") == (
      "[system]Be brief.[user]Hi[assistant]")


@pytest.mark.parametrize("values, message", [
    (dict(prompt=""), "--prompt is empty"),
    (dict(prompt="", chat="true"), "--prompt is empty"),
    (dict(prompt="Hi", system="Be kind."), "--system='Be kind.' needs --chat"),
    (dict(prompt="Hi", chat="true", target="python-target"),
     "python-target' has no chat template")], ids=str)
def test_prompts_that_cannot_be(encode, values, message):
  with pytest.raises(launch.UserError, match=message):
    encode(**values)
