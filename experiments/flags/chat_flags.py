"""Flags for chat models: `--chat` and `--system`."""

from absl import flags

from experiments.app import launch
from models.text import chat_template
from models.text import tokenizer_files

CHAT = flags.DEFINE_bool(
    "chat", False, "Treat the prompt as a user's message: write it by the "
    "target's chat template, and print only the answer.")
_SYSTEM = flags.DEFINE_string(
    "system", "", "System message of the chat; '' for none.")


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
    UserError: for `--system` alone, or a target without a chat template.
  """
  if not CHAT.value:
    if _SYSTEM.value:
      raise launch.UserError(f"--system={_SYSTEM.value!r} needs --chat.")
    return lambda prompt: tokenizer_files.encode(tokenizer, prompt).ids
  with launch.user_errors(OSError, ValueError):
    write = chat_template.encoder(launch.model_folder(target), tokenizer, now)
  first = ([{"role": "system", "content": _SYSTEM.value}] if _SYSTEM.value
           else [])

  def encode(prompt):
    said = prompt if isinstance(prompt, list) else [
        {"role": "user", "content": prompt}]
    return write([*first, *said]).ids

  return encode
