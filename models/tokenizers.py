"""Byte-level BPE tokenizers, kept as one `tokenizer.json`.

The object handed around is `tokenizers.Tokenizer` itself: `encode(text).ids`
and `decode(ids)`. Every text survives the round trip, since the alphabet is
the 256 bytes and nothing is normalised.
"""

import json
import pathlib
import re
from collections.abc import Iterable

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

FILE = "tokenizer.json"
# Stands between documents and ends a text.
EOS = "<|endoftext|>"


def train(texts: Iterable[str], vocab_size: int) -> tokenizers.Tokenizer:
  """Learns byte pair merges.

  Args:
    texts: what to learn from.
    vocab_size: entries, `EOS` and the 256 bytes included.

  Returns:
    A tokenizer; `EOS` is token 0.
  """
  alphabet = pre_tokenizers.ByteLevel.alphabet()
  if vocab_size <= len(alphabet):
    raise ValueError(
        f"vocab_size={vocab_size} is too small: {EOS} and the bytes alone are "
        f"{len(alphabet) + 1} entries.")
  tokenizer = tokenizers.Tokenizer(models.BPE())
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
  """Reads the `tokenizer.json` of a folder."""
  path = pathlib.Path(folder) / FILE
  if not path.is_file():
    raise FileNotFoundError(
        f"No tokenizer at '{path}': a checkpoint folder with a {FILE} is "
        "needed.")
  return tokenizers.Tokenizer.from_file(str(path))


def eos_id(tokenizer: tokenizers.Tokenizer) -> int | None:
  """The token that ends a text; None if the tokenizer has no `EOS`."""
  return tokenizer.token_to_id(EOS)


def pieces(tokenizer: tokenizers.Tokenizer,
           vocab_size: int | None = None) -> list[bytes]:
  """The bytes that each token adds to a text.

  Args:
    tokenizer: byte-level, or of the SentencePiece kind with byte fallback.
    vocab_size: V, if the model has more tokens than the tokenizer; None: as
      many as it has.

  Returns:
    V byte strings; b"" for special tokens and for those that are not used.
  """
  to_bytes = _piece_decoder(json.loads(tokenizer.to_str())["decoder"])
  added = tokenizer.get_added_tokens_decoder()
  vocabulary = tokenizer.get_vocab()
  size = vocab_size or max(vocabulary.values()) + 1
  if max(vocabulary.values()) >= size:
    raise ValueError(f"vocab_size={size} is less than the "
                     f"{max(vocabulary.values()) + 1} tokens there are.")
  found = [b""] * size
  for text, token in vocabulary.items():
    if token not in added:
      found[token] = to_bytes(text)
    elif not added[token].special:
      found[token] = text.encode()
  return found


def _piece_decoder(decoder):
  """`text of a token -> bytes`, by the decoder of a `tokenizer.json`."""
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
  """The 256 characters that stand for the bytes (GPT-2's `bytes_to_unicode`).

  Printable bytes stand for themselves, the others for characters from 256 on.
  """
  shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
  others = iter(range(256, 512))
  return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def _fallback_bytes(text):
  match = re.fullmatch("<0x([0-9A-F]{2})>", text)
  if match:
    return bytes([int(match[1], 16)])
  return text.replace("\u2581", " ").encode()
