"""Prompts as tokens, and the flags for chat models."""

import json

from absl import flags

from decoding_jax.validation import values
from experiments.app import launch
from experiments.data import records
from models.text import tokenizer_files

CHAT = flags.DEFINE_bool(
    "chat", False, "Treat the prompt as a user's message: write it by the "
    "target's chat template, and print only the answer.")
_SYSTEM = flags.DEFINE_string(
    "system", "", "System message of the chat; '' for none.")
_ARGUMENTS = flags.DEFINE_string(
    "chat_template_args", "", "JSON object of arguments for the chat template, "
    "such as '{\"enable_thinking\": false}'; '' for none.")


def encoder(tokenizer, target, now=None):
  """Returns `prompt -> list of tokens`; of a chat, a list of messages as well,
  with ValueError for those that the template refuses. `now` is its date.
  """
  if not CHAT.value:
    for flag in (_SYSTEM, _ARGUMENTS):
      if flag.value:
        raise launch.UserError(f"--{flag.name}={flag.value!r} needs --chat.")
    return lambda prompt: tokenizer_files.encode(tokenizer, prompt).ids
  arguments = _arguments()
  from models.text import chat_template  # Few runs need it.
  with launch.user_errors(OSError, ValueError):
    write = chat_template.encoder(launch.model_folder(target), tokenizer, now,
                                  arguments)
  first = ([{"role": "system", "content": _SYSTEM.value}] if _SYSTEM.value
           else [])

  def encode(prompt):
    said = prompt if isinstance(prompt, list) else [
        {"role": "user", "content": prompt}]
    return write([*first, *said]).ids

  return encode


def _arguments():
  if not _ARGUMENTS.value:
    return None
  try:
    arguments = json.loads(_ARGUMENTS.value)
  except (ValueError, RecursionError):
    arguments = None
  if not isinstance(arguments, dict) or "messages" in arguments:
    raise launch.UserError(
        f"--{_ARGUMENTS.name}={_ARGUMENTS.value!r}: a JSON object is needed, "
        'such as \'{"enable_thinking": false}\', with no "messages".')
  return arguments


def encode(prompt, tokenizer, target) -> list[int]:
  """Returns the tokens of the prompt of a command line."""
  encode_ = encoder(tokenizer, target)
  with launch.user_errors(ValueError):
    values.utf8(f"--prompt={prompt!r}", prompt)
    if not prompt or not tokenizer_files.encode(tokenizer, prompt).ids:
      raise ValueError("--prompt is empty: at least one token is needed.")
    return encode_(prompt)


def load(path, field, tokenizer, target, now=None) -> list[list[int]]:
  """Returns the tokens of each prompt in the field of a file's records."""
  if not path:
    raise launch.UserError("--prompts is empty: a file is needed.")
  encode_ = encoder(tokenizer, target, now)
  with launch.user_errors(ValueError):
    return [_encoded(encode_, record, field) for record in records.load(
        path, by_line=True, name="--prompts")]


def _encoded(encode_, record, field):
  prompt = record.value
  if isinstance(prompt, dict):
    try:
      value = records.find(record, field)
    except ValueError as e:
      raise ValueError(f"--field={field}: {e}") from e
    # A list of texts is one text of several lines, see `records.field`.
    prompt = value if CHAT.value and isinstance(value, list) and all(
        isinstance(x, dict) for x in value) else records.field(record, field)
  elif not isinstance(prompt, str):
    raise ValueError(f"{record.where} is of type {type(prompt).__name__}: a "
                     "text or an object is needed.")
  try:
    tokens = encode_(prompt)
  except ValueError as e:
    raise ValueError(f"{record.where}: {e}") from e
  if not tokens or prompt == []:
    raise ValueError(f"{record.where}: its prompt is empty.")
  return tokens
