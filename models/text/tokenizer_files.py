"""Files beside a tokenizer in published folders, and those of GPT-2's kind."""

import json
import pathlib

import tokenizers
from tokenizers import decoders, pre_tokenizers, processors
from tokenizers.models import BPE

CONFIG, VOCAB, MERGES = "tokenizer_config.json", "vocab.json", "merges.txt"
GENERATION = "generation_config.json"
# GPT-2's only special token, which its files do not name.
_END = "<|endoftext|>"


def setting(folder, file, name, default=None):
  """A field of a JSON file of a folder; `default` if either is missing."""
  path = pathlib.Path(folder) / file
  if not path.is_file():
    return default
  try:
    return json.loads(path.read_text("utf-8")).get(name, default)
  except (ValueError, AttributeError) as e:
    raise ValueError(f"'{path}' is not a JSON object: {e}.") from e


def special_token(folder, name):
  """A token that the settings name, such as "eos_token"; None without."""
  token = setting(folder, CONFIG, name)
  return token.get("content") if isinstance(token, dict) else token


def begin_with(tokenizer: tokenizers.Tokenizer, token: str) -> None:
  """Lets every text begin with a special token."""
  tokenizer.post_processor = processors.TemplateProcessing(
      single=f"{token} $A", pair=f"{token} $A {token} $B",
      special_tokens=[(token, tokenizer.token_to_id(token))])


def load_merges(folder) -> tokenizers.Tokenizer:
  """Reads the byte-level BPE of GPT-2, which OPT has.

  Args:
    folder: with `vocab.json`, `merges.txt` and perhaps settings.

  Returns:
    A tokenizer.
  """
  folder = pathlib.Path(folder)
  tokenizer = tokenizers.Tokenizer(
      BPE.from_file(str(folder / VOCAB), str(folder / MERGES)))
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
      add_prefix_space=bool(setting(folder, CONFIG, "add_prefix_space")))
  tokenizer.decoder = decoders.ByteLevel()
  special = {special_token(folder, name)
             for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
  special -= {None}
  if not special and tokenizer.token_to_id(_END) is not None:
    special = {_END}
  tokenizer.add_special_tokens(sorted(special))
  if setting(folder, CONFIG, "add_bos_token"):
    begin_with(tokenizer, special_token(folder, "bos_token"))
  return tokenizer
