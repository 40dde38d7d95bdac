"""Chat templates, as published tokenizers have them.

A template is a Jinja program in a checkpoint. It runs in a sandbox, sees only
the messages and the caller's arguments, and has limits of time and size
(`models.text.template_sandbox`).
"""

import datetime as dates
import importlib
import json
import pathlib

from models.folders import json_files
from models.folders import resolve
from models.text import tokenizer_files

FILE = "chat_template.jinja"
_FIELD = "chat_template"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")
# Of a list of templates, the name of the one for calls with tools.
_TOOL_USE = "tool_use"
# Names of a message's reasoning; templates read the first, gpt-oss the second.
_REASONING = ("reasoning_content", "thinking", "reasoning")


def load(folder, now=None, arguments=None):
  """Reads the chat template of a folder.

  Args:
    folder: with a `chat_template.jinja`, or a `chat_template` in its
      `tokenizer_config.json`; a GGUF file with one; or a name, see
      `resolve.folder`.
    now: a `datetime.datetime`, for templates that tell the date; None: that of
      each call.
    arguments: JSON values by names that the template knows, such as
      {"enable_thinking": False}, "tools" or "documents".

  Returns:
    A function from messages, a list of {"role": ..., "content": ...}, to the
    text that a model is to continue. Special tokens are part of it. A key of a
    message that is None counts as missing.

  Raises:
    FileNotFoundError: if there is no such folder.
    ValueError: naming the file, if there is no template or it is wrong; without
      Jinja; for arguments that are not JSON; from the function, if the template
      refuses the messages, fails, writes nothing, or meets a limit.
  """
  folder, arguments = resolve.folder(folder), _checked(arguments)
  try:
    importlib.import_module("jinja2")  # Which the sandbox is made of.
    # pylint: disable-next=import-outside-toplevel
    from models.text import template_sandbox
  except ImportError as e:
    raise ValueError("chat templates need the package jinja2: pip install "
                     "'decoding_jax[tasks]'.") from e
  environment = template_sandbox.Sandbox()
  environment.text_filter("tojson", _to_json)

  def strftime_now(form):
    template_sandbox.check_format(form)
    return (now or dates.datetime.now()).strftime(form)

  environment.globals.update(raise_exception=_refuse, strftime_now=strftime_now)
  tokens = {name: tokenizer_files.special_token(folder, name)
            for name in _SPECIAL}
  tokens = {name: token for name, token in tokens.items() if token is not None}
  names = {"tools": None, "documents": None, "add_generation_prompt": True,
           **tokens, **arguments}
  path, source = _source(folder, names["tools"])
  try:
    template = environment.from_source(source)
  except Exception as e:  # The parsers of Jinja and of Python raise many.
    raise ValueError(f"'{path}': the chat template is wrong: {_reason(e)}."
                     ) from e

  def render(messages):
    messages = [_message(i, x) for i, x in enumerate(messages)]
    try:
      text = environment.render(template, messages=messages, **names)
    except Exception as e:  # A program of someone else may raise anything.
      raise ValueError(f"'{path}': the chat template refuses the messages: "
                       f"{_reason(e)}.") from e
    if not text:
      raise ValueError(f"'{path}': the chat template gives an empty prompt.")
    return text

  return render


def encoder(folder, tokenizer, now=None, arguments=None):
  """Returns the function of `load`, followed by the tokenizer."""
  render = load(folder, now, arguments)
  # The template has written all special tokens.
  return lambda messages: tokenizer_files.encode(
      tokenizer, render(messages), add_special_tokens=False)


def _checked(arguments):
  """Returns a copy of the arguments, of plain JSON values."""
  try:
    copy = json.loads(json.dumps(arguments or {}))
  except (TypeError, ValueError, RecursionError) as e:
    raise ValueError("arguments of the chat template must be JSON values: "
                     f"{e}.") from e
  if not isinstance(copy, dict) or "messages" in copy:
    raise ValueError(
        f"arguments={json_files.shown(arguments)}: an object is needed, such as"
        ' {"enable_thinking": false}, with no "messages".')
  return copy


def _message(number, message):
  """Returns a message without keys that are None, with its reasoning by name.
  Clients of OpenAI and rows of `datasets` have such keys; templates would write
  the text "None" for them."""
  if not isinstance(message, dict):
    raise ValueError(f"messages[{number}]={json_files.shown(message)}: an "
                     'object such as {"role": "user", "content": "Hi"} is '
                     "needed.")
  message = {key: x for key, x in message.items() if x is not None}
  for key in _REASONING:
    if key in message:
      return {"thinking": message[key], **message, _REASONING[0]: message[key]}
  return message


def _source(folder, tools):
  path = pathlib.Path(folder) / FILE
  if path.is_file():
    try:
      return path, path.read_text("utf-8")
    except ValueError as e:
      raise ValueError(f"'{path}' is no text: {e}.") from e
  path = pathlib.Path(folder) / tokenizer_files.CONFIG
  template = tokenizer_files.setting(folder, tokenizer_files.CONFIG, _FIELD)
  if isinstance(template, list):  # Several with names.
    named = {x.get("name"): x.get("template") for x in reversed(template)
             if isinstance(x, dict) and isinstance(x.get("name"), str)}
    template = named.get("default")
    if tools is not None:
      template = named.get(_TOOL_USE, template)
  if not isinstance(template, str):
    raise ValueError(f"'{folder}' has no chat template: neither {FILE} nor "
                     f"{_FIELD} in {tokenizer_files.CONFIG}.")
  return path, template


def _reason(error):
  """Returns the message of an exception in one line."""
  lines = str(error).strip().splitlines() or [""]
  line = json_files.shortened(lines[0]).rstrip(".")
  name = type(error).__name__
  # Of Jinja's own the message alone is for people.
  if line and type(error).__module__.startswith("jinja2"):
    return line
  return f"{name}: {line}" if line else name


def _to_json(value, ensure_ascii=False, indent=None, separators=None,
             sort_keys=False):
  """Returns JSON; Jinja's own filter would escape it for HTML."""
  return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent,
                    separators=separators, sort_keys=sort_keys)


def _refuse(message):
  """Raises an error: templates call it for messages they do not support."""
  import jinja2  # pylint: disable=import-outside-toplevel
  raise jinja2.TemplateError(message)
