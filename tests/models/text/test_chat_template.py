"""Chat templates, as they come with a tokenizer."""

import json
import sys

import pytest

from experiments.data import prompt_tasks
from experiments.harness import store as results_store
from models.text import chat_template
from support.tiny_tasks import jsonl, make_config, make_pair

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
def test_chat_templates(files, tmp_path):
  pair = make_pair()
  for name, content in files.items():
    (tmp_path / name).write_text(content if name.endswith("jinja")
                                 else json.dumps(content))
  path = jsonl(tmp_path / "a.jsonl", {"question": "1 + 1?", "answer": "2"})
  config = make_config("gsm8k", path, chat=True, target=str(tmp_path),
                       system="Be brief.")
  [prompt] = prompt_tasks.load(config, pair).prompts
  text = pair.tokenizer.decode(prompt)
  assert text.startswith("<s>[system]Be brief.[user]Question: A box holds")
  assert text.endswith("#### 40[user]Question: 1 + 1?\nAnswer:[assistant]")
  with pytest.raises(ValueError, match="refuses the messages: role tool"):
    chat_template.load(tmp_path)([{"role": "tool", "content": ""}])


def _render(tmp_path, template, message, arguments=None):
  (tmp_path / chat_template.FILE).write_text(template)
  return chat_template.load(tmp_path, arguments=arguments)([message])


@pytest.mark.parametrize("message, text", [
    ({"content": None, "tool_calls": None}, "{}"),
    ({"content": "a", "calls": [{"x": None}]},
     '{"content": "a", "calls": [{"x": null}]}'),
    ({"reasoning": "why", "thinking": None},
     '{"thinking": "why", "reasoning": "why", "reasoning_content": "why"}'),
    ({"thinking": "why"}, '{"thinking": "why", "reasoning_content": "why"}')])
def test_keys_that_are_none(message, text, tmp_path):
  """They count as missing, at the top level alone; as in transformers."""
  assert _render(tmp_path, "{{ messages[0] | tojson }}", message) == text


def test_messages_that_are_none(tmp_path):
  with pytest.raises(ValueError, match=r"messages\[0\]='Hi': an object such"):
    _render(tmp_path, "{{ messages[0] }}", "Hi")


def test_arguments_of_a_template(tmp_path):
  """Tools and documents are None, all others undefined, unless given."""
  template = ("{{ enable_thinking is defined }} {{ tools }} {{ documents }} "
              "{{ add_generation_prompt }}")
  assert _render(tmp_path, template, {}) == "False None None True"
  assert _render(tmp_path, template, {}, {
      "enable_thinking": False, "tools": [1], "documents": ["a"],
      "add_generation_prompt": False}) == "True [1] ['a'] False"
  for arguments, message in (({"messages": []}, "with no \"messages\""),
                             ([1], r"arguments=\[1\]: an object is needed"),
                             ({"tools": [print]}, "must be JSON values: ")):
    with pytest.raises(ValueError, match=message):
      _render(tmp_path, template, {}, arguments)


def test_template_for_tools(tmp_path):
  (tmp_path / "tokenizer_config.json").write_text(json.dumps({
      "chat_template": [{"name": "default", "template": "plain"},
                        {"name": "tool_use", "template": "{{ tools }}"}]}))
  assert chat_template.load(tmp_path)([]) == "plain"
  assert chat_template.load(tmp_path, arguments={"tools": [1]})([]) == "[1]"


def test_a_date_is_that_of_the_first_start(tmp_path):
  """Else a run could not go on the day after."""
  (tmp_path / chat_template.FILE).write_text(
      "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m.content }}"
      "{% endfor %}")
  pair, workdir = make_pair(), results_store.open_workdir(tmp_path / "run", {})
  record = json.loads((workdir / results_store.RUN).read_text())
  record["starts"][0]["time"] = "2001-05-10T12:00:00Z"
  results_store.save(workdir / results_store.RUN, record)
  results_store.open_workdir(workdir, {})
  path = jsonl(tmp_path / "a.jsonl", {"question": "1 + 1?", "answer": "2"})
  config = make_config("gsm8k", path, chat=True, target=str(tmp_path))
  [prompt] = prompt_tasks.load(config, pair,
                               results_store.started_at(workdir)).prompts
  assert pair.tokenizer.decode(prompt).startswith("10 May 2001")
  new = chat_template.load(tmp_path,
                           results_store.started_at(tmp_path / "none"))([])
  assert new == chat_template.load(tmp_path)([])


@pytest.mark.parametrize("template, message", [
    ("{% if %}", "is wrong"),
    ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "refuses"),
    ("{{ messages.append(1) }}", "refuses"),
])
def test_chat_templates_that_may_not_be(template, message, tmp_path):
  (tmp_path / chat_template.FILE).write_text(template)
  with pytest.raises(ValueError, match=message):
    chat_template.load(tmp_path)([{"role": "user", "content": "Hi"}])


def test_chat_template_without_jinja(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "jinja2", None)
  with pytest.raises(ValueError, match="need the package jinja2: pip install"):
    chat_template.load(tmp_path)
