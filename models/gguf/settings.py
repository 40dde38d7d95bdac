"""Settings of the tokenizer of a GGUF file, as folders of transformers have.

The vocabulary itself is read by `models.text.gguf_tokenizer`.
"""

from models.folders import json_files
from models.gguf import files

TOKENS = "tokenizer.ggml.tokens"
_PREFIX = "tokenizer.ggml."
_SPECIAL = {"bos_token": "bos_token_id", "eos_token": "eos_token_id",
            "unk_token": "unknown_token_id", "pad_token": "padding_token_id"}
# Tokens that end a turn, where a file gives them besides the end of a text.
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
# And their spellings, as llama.cpp knows them, where it does not.
_END_TEXTS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
_CONTROL = 3


def read(path) -> dict[str, dict]:
  """Returns fields of tokenizer_config.json and of generation_config.json."""
  metadata = files.read(path).metadata
  tokens = metadata.get(TOKENS, [])
  fields = {}
  for name, key in _SPECIAL.items():
    token = _token_id(path, metadata, key, tokens)
    if token is not None:
      fields[name] = tokens[token]
  for name in ("add_bos_token", "chat_template"):
    value = metadata.get(f"{_PREFIX}{name}", metadata.get(f"tokenizer.{name}"))
    if value is not None:
      fields[name] = value
  ends = [_token_id(path, metadata, key, tokens) for key in _ENDS]
  ends = [*filter(lambda x: x is not None, ends), *_ends_of_turns(metadata)]
  return {"tokenizer_config.json": fields,
          "generation_config.json": (
              {"eos_token_id": [*dict.fromkeys(ends)]} if ends else {})}


def _token_id(path, metadata, key, tokens):
  token = metadata.get(f"{_PREFIX}{key}")
  if token is None:
    return None
  if type(token) is not int or not 0 <= token < len(tokens):
    raise ValueError(f"'{path}': {_PREFIX}{key}={json_files.shown(token)}: 0 "
                     f"to {len(tokens) - 1} is allowed.")
  return token


def _ends_of_turns(metadata):
  """Returns control tokens that are known to end a turn."""
  kinds = metadata.get(f"{_PREFIX}token_type", [])
  tokens = metadata.get(TOKENS, [])
  if len(kinds) != len(tokens):
    return []
  ids = {token: i for i, token in enumerate(tokens)}
  return [ids[text] for text in _END_TEXTS
          if text in ids and kinds[ids[text]] == _CONTROL]
