"""Tokenizers, each of them one `tokenizer.json`.

Objects are `tokenizers.Tokenizer`. Those trained here are byte-level BPE
without normalisation, so every text survives the round trip. Published ones are
read without truncation and padding.
"""

import contextlib
import functools
import json
import pathlib
import re
import shutil
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

from decoding_jax import token_text
from models.folders import atomic
from models.folders import json_files
from models.folders import resolve
from models.gguf import files as gguf_files
from models.gguf import settings as gguf_settings
from models.text import sentencepiece
from models.text import text_growth
from models.text import tokenizer_files

FILE, CONFIG = "tokenizer.json", tokenizer_files.CONFIG
_GENERATION = tokenizer_files.GENERATION
# Files of published checkpoints that belong to a tokenizer.
_WITH = (CONFIG, _GENERATION, "special_tokens_map.json", "chat_template.jinja")
# What `copy` writes.
FILES = (FILE, *_WITH)
# Separates documents, and ends a text.
EOS = "<|endoftext|>"
# What each file of a tokenizer is read by, the first one that is there.
_READERS = {
    FILE: lambda folder: _of_json(folder / FILE),
    tokenizer_files.MERGES: tokenizer_files.load_merges,
    sentencepiece.FILE: sentencepiece.load}
# What is encoded when a tokenizer is loaded: patterns that backtrack without
# end mostly do so over repetitions.
_PROBE = "".join(x * 64 for x in ("a", " ", "1", "x1", "-", "\n", "Ab, ", "é"))
# What transformers loads a tokenizer by.
_CLASS = {"tokenizer_class": "PreTrainedTokenizerFast",
          "clean_up_tokenization_spaces": False}
# Tokens of a prompt of which one is to be decoded after.
_CONTEXT = 16
# A token of byte fallback.
_BYTE = "<0x([0-9A-F]{2})>"


def train(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
  """Learns byte pair merges; `EOS` is token 0.

  `vocab_size` counts `EOS` and the 256 bytes too.
  """
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  if vocab_size <= len(alphabet):
    raise ValueError(
        f"vocab_size={vocab_size} is too small: {EOS} and the bytes alone are "
        f"{len(alphabet) + 1} entries.")
  tokenizer = tokenizers.Tokenizer(BPE())
  tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  tokenizer.decoder = decoders.ByteLevel()
  trainer = trainers.BpeTrainer(
      vocab_size=vocab_size, special_tokens=[EOS], show_progress=False,
      initial_alphabet=sorted(alphabet))
  tokenizer.train_from_iterator(texts, trainer)
  return tokenizer


def save(tokenizer: tokenizers.Tokenizer, folder) -> None:
  """Writes `tokenizer.json` into a folder, which is made if need be."""
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  partial = folder / f"{FILE}.partial"
  tokenizer.save(str(partial))
  partial.replace(folder / FILE)


def load(folder) -> tokenizers.Tokenizer:
  """Reads the tokenizer of a folder, GGUF file, or name of `resolve.folder`.

  A folder has a `tokenizer.json`, a `tokenizer.model` of SentencePiece, or a
  `vocab.json` with `merges.txt`. Raises FileNotFoundError if there is none of
  them, and ValueError if the file cannot be read.
  """
  folder = resolve.folder(folder)
  if gguf_files.is_gguf(folder):
    from models.text import gguf_tokenizer  # Few models need it.
    return _read(folder, folder, gguf_tokenizer.load)
  for name, read in _READERS.items():
    if (folder / name).is_file():
      return _read(folder / name, folder, read)
  raise FileNotFoundError(
      f"No tokenizer at '{folder / FILE}': a checkpoint folder with a {FILE}, "
      f"{sentencepiece.FILE} or {tokenizer_files.MERGES} is needed.")


def _of_json(path):
  json_files.refuse_pointer(path)
  text_growth.check(path)
  return tokenizers.Tokenizer.from_file(str(path))


def _read(path, folder, read):
  """Returns `read(folder)`, after it has encoded a text; errors name `path`."""
  message = f"'{path}': its tokenizer cannot be read"
  # Errors of this package name the file.
  with tokenizer_files.named_failures(message, ValueError, OSError):
    tokenizer = read(folder)
  # Trainers leave theirs in the file: texts would be cut or filled with pads.
  tokenizer.no_truncation()
  tokenizer.no_padding()
  with tokenizer_files.named_failures(message), contextlib.suppress(Exception):
    tokenizer.encode(_PROBE)  # It may have no tokens for some characters.
  return tokenizer


def has(folder) -> bool:
  """Returns whether `load` finds a tokenizer in a folder, or a GGUF file."""
  folder = pathlib.Path(folder)
  if gguf_files.is_gguf(folder):
    return gguf_settings.TOKENS in gguf_files.read(folder).metadata
  return any((folder / name).is_file() for name in _READERS)


def copy(source, folder) -> int | None:
  """Copies the tokenizer of a folder or GGUF file, with its settings.

  Returns its `eos_id`.
  """
  tokenizer = load(source)
  save(tokenizer, folder)
  if gguf_files.is_gguf(source):
    for name, fields in gguf_settings.read(source).items():
      atomic.write_json(pathlib.Path(folder) / name,
                        {**(_CLASS if name == CONFIG else {}), **fields})
  for name in _WITH:
    if (pathlib.Path(source) / name).is_file():
      shutil.copy(pathlib.Path(source) / name, pathlib.Path(folder) / name)
  if not (pathlib.Path(folder) / _GENERATION).exists():
    # Older folders have these in the config of the model, which is left behind.
    ids = {name: tokenizer_files.setting(source, "config.json", name)
           for name in ("bos_token_id", "eos_token_id")}
    ids = {name: x for name, x in ids.items() if x is not None}
    if ids:
      atomic.write_json(pathlib.Path(folder) / _GENERATION, ids)
  return eos_id(tokenizer, source)


def describe(tokenizer: tokenizers.Tokenizer, folder) -> None:
  """Tells transformers how to load a tokenizer, unless something does."""
  path = pathlib.Path(folder) / CONFIG
  if not path.exists():
    ends = {"eos_token": EOS} if eos_id(tokenizer) is not None else {}
    atomic.write_json(path, {**_CLASS, **ends})


def eos_id(tokenizer: tokenizers.Tokenizer, folder=None) -> int | None:
  """Returns the token that ends a text; None if there is none.

  The files of a published checkpoint in `folder`, or a name, decide, the
  tokenizer's first: that is the token that a chat ends with.
  """
  if folder is not None:
    folder = resolve.folder(folder)
    token = tokenizer_files.special_token(folder, "eos_token")
    if token is not None and tokenizer.token_to_id(token) is not None:
      return tokenizer.token_to_id(token)
    for token in _listed(folder):
      return token
  return tokenizer.token_to_id(EOS)


def eos_ids(tokenizer: tokenizers.Tokenizer, folder) -> tuple[int, ...]:
  """Returns all tokens that end a text or a turn of a chat, `eos_id` first.

  The others are those that transformers would end at.
  """
  folder = resolve.folder(folder)
  first = eos_id(tokenizer, folder)
  return tuple(dict.fromkeys(
      [*([] if first is None else [first]), *_listed(folder)]))


def bos_id(tokenizer: tokenizers.Tokenizer, folder) -> int | None:
  """Returns the token that begins a text by the files of a folder, or None."""
  token = tokenizer_files.special_token(folder, "bos_token")
  if token is not None and tokenizer.token_to_id(token) is not None:
    return tokenizer.token_to_id(token)
  return tokenizer_files.setting(folder, _GENERATION, "bos_token_id")


def _listed(folder):
  """Returns the tokens that end a text by the settings of a checkpoint."""
  for name in (_GENERATION, "config.json"):
    ends = tokenizer_files.setting(folder, name, "eos_token_id")
    if ends is not None:
      return ends if isinstance(ends, list) else [ends]
  return []


def size(tokenizer: tokenizers.Tokenizer) -> int:
  """Returns the number of ids: the largest one plus 1."""
  return max(tokenizer.get_vocab().values(), default=-1) + 1


def used_size(tokenizer: tokenizers.Tokenizer, vocab_size: int) -> int:
  """Returns the number of ids that a model of V rows can write.

  Fine-tunes often add a token, such as a pad, that the model has no row for: it
  never occurs in a text. Then it is V at most; else `size`.
  """
  count, added = size(tokenizer), tokenizer.get_added_tokens_decoder()
  if all(token in added for token in range(vocab_size, count)):
    return min(count, vocab_size)
  return count


def check_same(ours: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer):
  """Raises ValueError with the first entry that two tokenizers do not share."""
  entries, others = ({i: token for token, i in x.get_vocab().items()}
                     for x in (ours, theirs))
  for i in sorted(entries.keys() | others.keys()):
    if entries.get(i) != others.get(i):
      raise ValueError(f"their entry {i} is {entries.get(i)!r} and "
                       f"{others.get(i)!r}.")


def decode(tokenizer: tokenizers.Tokenizer, tokens, prompt=()) -> str:
  """Returns the text that tokens after a prompt add, without special tokens.

  A text of SentencePiece begins without a blank, which tokens that follow a
  prompt keep.
  """
  return token_text.added(tokenizer.decode, _context(tokenizer, prompt), tokens)


def decode_stable_prefix(tokenizer: tokenizers.Tokenizer, tokens,
                         prompt=()) -> str:
  """Decodes tokens, as far as no token after them can change the text.

  Held back are a character whose last bytes may be still to come, and with byte
  fallback all bytes in a row: one that does not fit spoils those before it.
  """
  return token_text.added(lambda x: _kept(tokenizer, x).rstrip("\ufffd"),
                          _context(tokenizer, prompt), tokens)


def _context(tokenizer, prompt):
  """Returns a token to decode after, whose text no other changes, or []."""
  if all(_is_special(tokenizer, x) for x in prompt):
    return []  # What follows is the beginning of the text.
  decode_kept = functools.partial(_kept, tokenizer)
  # A prompt of bytes and blanks has none: then any other token.
  return (token_text.context(decode_kept, prompt[-_CONTEXT:]) or
          token_text.context(decode_kept, range(size(tokenizer))))


def _kept(tokenizer, tokens):
  """Returns a text without bytes and special tokens at the end."""
  kept = list(tokens)
  while kept and (re.fullmatch(_BYTE, tokenizer.id_to_token(kept[-1]) or "") or
                  _is_special(tokenizer, kept[-1])):
    kept.pop()
  return tokenizer.decode(kept)


def _is_special(tokenizer, token):
  """Returns whether a text leaves out a token; faster than to list all."""
  return not tokenizer.decode([token]) and bool(
      tokenizer.decode([token], skip_special_tokens=False))


def pieces(tokenizer: tokenizers.Tokenizer,
           vocab_size: int | None = None) -> list[bytes]:
  """Returns the bytes that each of V tokens adds to a text.

  The tokenizer is byte-level, or of SentencePiece with byte fallback.
  `vocab_size` is V if the model has more tokens than the tokenizer, or no rows
  for added ones. Empty are unused tokens, and special ones, which are
  `SpecialToken`s of `decoding_jax.token_text`.
  """
  to_bytes = _piece_decoder(json.loads(tokenizer.to_str())["decoder"])
  added = tokenizer.get_added_tokens_decoder()
  vocabulary = tokenizer.get_vocab()
  num_pieces = vocab_size or size(tokenizer)
  if used_size(tokenizer, num_pieces) > num_pieces:
    raise ValueError(f"vocab_size={num_pieces} is less than the "
                     f"{size(tokenizer)} tokens there are.")
  bytes_ = [b""] * num_pieces
  for text, token in vocabulary.items():
    if token >= num_pieces:
      continue
    if token not in added:
      bytes_[token] = to_bytes(text)
    else:
      bytes_[token] = (token_text.SpecialToken(text) if added[token].special
                       else text.encode())
  return bytes_


def _piece_decoder(decoder):
  """Returns `text of a token -> bytes`, by a decoder of `tokenizer.json`."""
  parts = [decoder or {}, *(decoder or {}).get("decoders", ())]
  kinds = [part.get("type") for part in parts]
  if "ByteLevel" in kinds:
    byte_of = {char: byte for byte, char in enumerate(_byte_chars())}
    return lambda text: bytes(byte_of[char] for char in text)
  if "ByteFallback" in kinds:
    return _fallback_bytes
  raise ValueError(f"decoder {kinds[0]!r}: the bytes of tokens are known of "
                   "byte-level tokenizers and of those with byte fallback.")


def _byte_chars():
  """Returns the characters that encode the bytes (GPT-2's `bytes_to_unicode`).
  Printable bytes are themselves, the others are characters from 256 on."""
  shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = iter(range(256, 512))
  return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def _fallback_bytes(text):
  match = re.fullmatch(_BYTE, text)
  if match:
    return bytes([int(match[1], 16)])
  return text.replace("\u2581", " ").encode()
