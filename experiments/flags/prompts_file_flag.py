"""The flags `--prompts` and `--field`: prompts from a file."""

from absl import flags

from experiments.app import launch
from experiments.data import records
from experiments.flags import chat_flags

_PROMPTS = flags.DEFINE_string(
    "prompts", "", "File of prompts: .jsonl, .json with a list, or one prompt a"
    " line, each perhaps compressed (.gz); or hub:owner/name, a data set.")
_FIELD = flags.DEFINE_string(
    "field", "prompt", "Path of the prompt in a JSON object, its parts "
    "separated by dots.")


def load(tokenizer, target, now=None) -> list[list[int]]:
  """Reads and encodes the prompts of the file.

  Args:
    tokenizer: of the target.
    target: its folder or name, see `chat_flags.encoder`.
    now: date that a chat template inserts, see `chat_template.load`.

  Returns:
    The tokens of each prompt.

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
  """Returns whether a value is a list of messages.

  A list of texts is one text of several lines, see `records.field`.
  """
  return isinstance(value, list) and all(isinstance(x, dict) for x in value)
