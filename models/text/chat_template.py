"""Chat templates, as published tokenizers have them.

A template is a Jinja program that comes with a checkpoint. It runs in a sandbox
with the names that transformers gives it, and sees nothing but the messages.
"""

import datetime as dates
import json
import pathlib

from models.folders import resolve
from models.text import tokenizer_files

FILE = "chat_template.jinja"
_FIELD = "chat_template"
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token")


def load(folder, now=None):
  """The chat template of a folder.

  Args:
    folder: with a `chat_template.jinja`, or a `chat_template` in its
      `tokenizer_config.json`; or a name, see `resolve.folder`.
    now: a `datetime.datetime`, for templates that tell the date; None: that of
      each call.

  Returns:
    A function from messages, a list of {"role": ..., "content": ...}, to the
    text that a model is to continue. Special tokens are part of it.

  Raises:
    FileNotFoundError: if there is no such folder.
    ValueError: if there is no template, if it is wrong, or without Jinja; the
      function, for messages that the template refuses.
  """
  folder = resolve.folder(folder)
  try:
    import jinja2  # pylint: disable=import-outside-toplevel
    from jinja2 import sandbox  # pylint: disable=import-outside-toplevel
  except ImportError as e:
    raise ValueError("chat templates need the package jinja2: pip install "
                     "'decoding_jax[tasks]'.") from e
  environment = sandbox.ImmutableSandboxedEnvironment(
      trim_blocks=True, lstrip_blocks=True,
      extensions=["jinja2.ext.loopcontrols"])
  environment.filters["tojson"] = _to_json
  environment.globals.update(
      raise_exception=_refuse,
      strftime_now=lambda form: (now or dates.datetime.now()).strftime(form))
  tokens = {name: tokenizer_files.special_token(folder, name)
            for name in _SPECIAL}
  tokens = {name: token for name, token in tokens.items() if token is not None}
  try:
    template = environment.from_string(_source(folder))
  except jinja2.TemplateError as e:
    raise ValueError(f"the chat template of '{folder}' is wrong: {e}.") from e

  def render(messages):
    try:
      return template.render(messages=messages, add_generation_prompt=True,
                             **tokens)
    except (jinja2.TemplateError, TypeError) as e:
      raise ValueError(f"the chat template of '{folder}' refuses the messages: "
                       f"{e}.") from e

  return render


def encoder(folder, tokenizer, now=None):
  """What `load` returns, as far as tokens.

  Args:
    folder: of `load`.
    tokenizer: that goes with it.
    now: of `load`.

  Returns:
    A function from messages to an encoding of the tokenizer.

  Raises:
    FileNotFoundError, ValueError: as `load`.
  """
  render = load(folder, now)
  # The template has written all special tokens.
  return lambda messages: tokenizer.encode(render(messages),
                                           add_special_tokens=False)


def _source(folder):
  """The program: of a file of its own, else of the tokenizer's settings."""
  path = pathlib.Path(folder) / FILE
  if path.is_file():
    return path.read_text("utf-8")
  found = tokenizer_files.setting(folder, tokenizer_files.CONFIG, _FIELD)
  if isinstance(found, list):  # Several with names.
    found = {x["name"]: x["template"] for x in found}.get("default")
  if not isinstance(found, str):
    raise ValueError(f"'{folder}' has no chat template: neither {FILE} nor "
                     f"{_FIELD} in {tokenizer_files.CONFIG}.")
  return found


def _to_json(value, indent=None):
  """Jinja's own filter would escape for HTML."""
  return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message):
  """What a template calls for messages that it was not made for."""
  import jinja2  # pylint: disable=import-outside-toplevel
  raise jinja2.TemplateError(message)
