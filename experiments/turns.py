"""What is to be continued: the flags `--prompt`, `--chat` and `--system`."""

from absl import flags

from experiments import launch
from models import chat

_PROMPT = flags.DEFINE_string("prompt", "def main(", "Text to continue.")
_CHAT = flags.DEFINE_bool(
    "chat", False, "The prompt is what a user says, written by the target's "
    "chat template; the text is the answer alone.")
_SYSTEM = flags.DEFINE_string(
    "system", "", "What a chat model is told first; '' for nothing.")


def shown() -> str:
  """What is printed in front of a completion."""
  return "" if _CHAT.value else _PROMPT.value


def encode(tokenizer, target) -> list[int]:
  """The tokens of the prompt.

  Args:
    tokenizer: of the target.
    target: its folder, or the name of a shipped model.

  Returns:
    list of tokens.

  Raises:
    UserError: if there are none, or for a target without a chat template.
  """
  if _SYSTEM.value and not _CHAT.value:
    raise launch.UserError(f"--system={_SYSTEM.value!r} needs --chat.")
  try:
    _PROMPT.value.encode()
  except UnicodeEncodeError as e:
    raise launch.UserError(f"--prompt={_PROMPT.value!r} is no text in UTF-8, "
                           "or the locale is another one.") from e
  # What a template writes around it is no prompt.
  ids = tokenizer.encode(_PROMPT.value).ids if _PROMPT.value else []
  if not ids:
    raise launch.UserError("--prompt is empty: at least one token is needed.")
  if not _CHAT.value:
    return ids
  said = [("system", _SYSTEM.value), ("user", _PROMPT.value)]
  with launch.user_errors(ValueError):
    write = chat.encoder(launch.model_folder(target), tokenizer)
    return write([{"role": role, "content": content}
                  for role, content in said if content]).ids
