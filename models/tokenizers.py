"""Byte-level BPE tokenizers, kept as one `tokenizer.json`.

The object handed around is `tokenizers.Tokenizer` itself: `encode(text).ids`
and `decode(ids)`. Every text survives the round trip, since the alphabet is
the 256 bytes and nothing is normalised.
"""

import pathlib
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
