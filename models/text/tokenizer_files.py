"""Settings of tokenizers in published folders, and the files of GPT-2."""

import contextlib
import pathlib

import tokenizers
from tokenizers import decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from models.folders import json_files
from models.gguf import files as gguf_files
from models.gguf import settings as gguf_settings

CONFIG, VOCAB, MERGES = "tokenizer_config.json", "vocab.json", "merges.txt"
GENERATION = "generation_config.json"
_TOKEN = (json_files.Field(str), json_files.Field(dict))
_ID = json_files.Field(int, 0, 2**31 - 1)
_NUMBER = (json_files.Field(float, 0, 1e9), json_files.Field(int, 0, 10**9))
# What is read of these files, and the types that each field may have.
_FIELDS = {
    "bos_token": _TOKEN, "eos_token": _TOKEN, "pad_token": _TOKEN,
    "unk_token": _TOKEN, "add_bos_token": (json_files.Field(bool),),
    "add_prefix_space": (json_files.Field(bool),),
    "chat_template": (json_files.Field(str), json_files.Field(list)),
    "bos_token_id": (_ID,),
    "eos_token_id": (_ID, json_files.Field(list, 0, 64, _ID)),
    "do_sample": (json_files.Field(bool),), "temperature": _NUMBER,
    "top_p": _NUMBER, "min_p": _NUMBER, "top_k": (_ID,),
    "typical_p": _NUMBER, "repetition_penalty": _NUMBER,
    "no_repeat_ngram_size": (_ID,)}
# Types of pieces, as SentencePiece and GGUF count them.
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
# GPT-2's only special token, which its files do not name.
_END = "<|endoftext|>"


def setting(folder, file, name, default=None):
  """Returns a field of a JSON file of a folder, or GGUF file, of a known type.
  Returns `default` without the file or field; raises ValueError naming the file
  if it is no object or the field is wrong."""
  path = pathlib.Path(folder) / file
  if gguf_files.is_gguf(folder):
    path = pathlib.Path(folder)
    value = gguf_settings.read(path).get(file, {}).get(name)
  elif path.is_file():
    value = json_files.read(path).get(name)
  else:
    return default
  if value is None:
    return default
  fields = _FIELDS[name]
  for field in fields:
    if type(value) is field.type_:
      with json_files.naming(path):
        return json_files.check(name, value, field)
  raise ValueError(
      f"'{path}': {name}={json_files.shown(value)}: a value of type "
      f"{' or '.join(field.type_.__name__ for field in fields)} is needed.")


def special_token(folder, name):
  """Returns a token of the settings, such as "eos_token"; None if absent."""
  token = setting(folder, CONFIG, name)
  if isinstance(token, dict):
    token = token.get("content")
    if not isinstance(token, str):
      raise ValueError(f"'{pathlib.Path(folder) / CONFIG}': {name} has no "
                       "content of type str.")
  return token


def encode(tokenizer, text: str, **kwargs) -> tokenizers.Encoding:
  """Encodes a text; raises ValueError if the tokenizer fails."""
  with named_failures("the tokenizer fails on a text of "
                      f"{len(text)} characters"):
    return tokenizer.encode(text, **kwargs)


@contextlib.contextmanager
def named_failures(message: str, *others):
  """Raises a ValueError for what the library raises, but for `others`. Its
  panics are no `Exception`: of a damaged file, or of a pattern that backtracks
  without end."""
  try:
    yield
  except (KeyboardInterrupt, SystemExit, GeneratorExit, *others):
    raise
  except BaseException as e:
    reason = json_files.shortened(str(e) or type(e).__name__)
    raise ValueError(f"{message}: {reason}") from e


def keep_whole(tokenizer, pieces) -> None:
  """Adds special and user-defined pieces, of a list of (text, type)."""
  tokenizer.add_special_tokens([
      tokenizers.AddedToken(text, normalized=False, special=True)
      for text, type_ in pieces if type_ in (CONTROL, UNKNOWN)])
  tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False)
                        for text, type_ in pieces if type_ == USER])


def begin_with(tokenizer: tokenizers.Tokenizer, token: str) -> None:
  """Lets every text begin with a special token."""
  tokenizer.post_processor = processors.TemplateProcessing(
      single=f"{token} $A", pair=f"{token} $A {token} $B",
      special_tokens=[(token, tokenizer.token_to_id(token))])


def load_merges(folder) -> tokenizers.Tokenizer:
  """Reads the byte-level BPE of GPT-2 (`vocab.json`, `merges.txt`)."""
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
    bos = special_token(folder, "bos_token")
    if bos is None:
      raise ValueError(f"'{folder / CONFIG}': bos_token must be given, since "
                       "add_bos_token is true.")
    begin_with(tokenizer, bos)
  return tokenizer
