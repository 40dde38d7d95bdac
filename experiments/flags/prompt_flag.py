"""The flag `--prompt`: one prompt on the command line."""

from absl import flags

from experiments.app import launch
from experiments.flags import chat_flags
from models.text import tokenizer_files

_PROMPT = flags.DEFINE_string("prompt", "def main(", "Text to continue.")


def prompt_text() -> str:
  """Returns the text to print in front of a completion; "" in a chat."""
  return "" if chat_flags.CHAT.value else _PROMPT.value


def encode(tokenizer, target) -> list[int]:
  """Returns the tokens of the prompt.

  Args:
    tokenizer: of the target.
    target: its folder, or the name of a shipped model.

  Returns:
    list of tokens.

  Raises:
    UserError: if there are none, or for a target without a chat template.
  """
  encode_ = chat_flags.encoder(tokenizer, target)
  try:
    _PROMPT.value.encode()
  except UnicodeEncodeError as e:
    raise launch.UserError(f"--prompt={_PROMPT.value!r} is no text in UTF-8, "
                           "or the locale is another one.") from e
  with launch.user_errors(ValueError):
    if not _PROMPT.value or not tokenizer_files.encode(tokenizer,
                                                       _PROMPT.value).ids:
      raise ValueError("--prompt is empty: at least one token is needed.")
    return encode_(_PROMPT.value)
