"""Flags for chat models: `--chat`, `--system` and `--chat_template_args`."""

import json

from absl import flags

from experiments.app import launch
from models.text import chat_template
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
  """Returns a function from prompts to their tokens.

  Args:
    tokenizer: of the target.
    target: its folder, hub:owner/name, or the name of a shipped model.
    now: see `chat_template.load`.

  Returns:
    `prompt -> list of tokens`; with `--chat` a prompt may be a list of
    messages. It raises `ValueError` for messages that the template refuses.

  Raises:
    UserError: for another of these flags without `--chat`, arguments that are
      no JSON object, or a target without a chat template.
  """
  if not CHAT.value:
    for flag in (_SYSTEM, _ARGUMENTS):
      if flag.value:
        raise launch.UserError(f"--{flag.name}={flag.value!r} needs --chat.")
    return lambda prompt: tokenizer_files.encode(tokenizer, prompt).ids
  arguments = _arguments()
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
  """Returns the arguments of the template; None for none."""
  if not _ARGUMENTS.value:
    return None
  try:
    found = json.loads(_ARGUMENTS.value)
  except (ValueError, RecursionError):
    found = None
  if not isinstance(found, dict) or "messages" in found:
    raise launch.UserError(
        f"--{_ARGUMENTS.name}={_ARGUMENTS.value!r}: a JSON object is needed, "
        'such as \'{"enable_thinking": false}\', with no "messages".')
  return found
