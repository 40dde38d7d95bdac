"""Prompts of a file: the flags `--prompts` and `--field`."""

from absl import flags

from experiments.app import launch
from experiments.data import records
from experiments.flags import chat_flags

_PROMPTS = flags.DEFINE_string(
    "prompts", "", "File of prompts: .jsonl, .json with a list, or one prompt a"
    " line; each may end with .gz. hub:owner/name is a data set.")
_FIELD = flags.DEFINE_string(
    "field", "prompt", "Where the prompt is in an object of JSON; parts of a "
    "path are separated by dots.")


def load(tokenizer, target, now=None) -> list[list[int]]:
  """The tokens of each prompt.

  Args:
    tokenizer: of the target.
    target: see `chat_flags.encoder`.
    now: see there.

  Returns:
    As many as the file has prompts.

  Raises:
    UserError: naming the flag, or file, line and field.
  """
  if not _PROMPTS.value:
    raise launch.UserError("--prompts is empty: a file is needed.")
  encode = chat_flags.encoder(tokenizer, target, now)
  with launch.user_errors(ValueError):
    try:
      found = records.load(_PROMPTS.value, by_line=True, name="--prompts")
    except OSError as e:
      raise ValueError(f"--prompts={_PROMPTS.value}: {e}") from e
    return [_encoded(encode, record) for record in found]


def _encoded(encode, record):
  prompt = record.value
  if isinstance(prompt, dict):
    found = records.find(record, _FIELD.value)
    prompt = (found if chat_flags.CHAT.value and _is_chat(found)
              else records.field(record, _FIELD.value))
  elif not isinstance(prompt, str):
    raise ValueError(f"{record.where} is of type {type(prompt).__name__}: a "
                     "text or an object is needed.")
  try:
    tokens = encode(prompt)
  except ValueError as e:
    raise ValueError(f"{record.where}: {e}") from e
  if not tokens or prompt == []:
    raise ValueError(f"{record.where}: its prompt is empty.")
  return tokens


def _is_chat(value):
  """Whether these are messages; a list of texts is one text, see `records`."""
  return isinstance(value, list) and all(isinstance(x, dict) for x in value)
