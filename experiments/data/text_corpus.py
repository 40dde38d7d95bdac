"""Training data: windows of any text, a file of text or of JSON lines."""

import pathlib

import numpy as np

from experiments.data import batches
from experiments.data import python_corpus
from experiments.data import python_windows
from experiments.data import records
from models.text import tokenizer_files
from models.text import tokenizers

# A file that is one text is cut into so many parts, of whole lines.
_PARTS = 64
# One document in so many is held out.
_STRIDE = 16


def is_corpus(config) -> bool:
  """Returns whether `config.corpus` is a file."""
  return bool(config.corpus) and pathlib.Path(config.corpus).is_file()


def check(config) -> None:
  """Raises a ValueError for samples that no window fits in."""
  python_windows.check(config)


def texts(config) -> list[str]:
  """Returns the texts that a tokenizer is trained on."""
  return _split(config, python_corpus.TRAIN)


def data(config, tokenizer) -> batches.Data:
  """Makes windows of the documents of `config.corpus`."""
  train, held_out = (_encode(tokenizer, _split(config, split))
                     for split in (python_corpus.TRAIN, python_corpus.HELD_OUT))

  def prompts(count):
    tokens = np.asarray(python_corpus.passages(
        tokenizer, count, config.sample_prompt, config.seed, texts(config)),
                        np.int32)
    return tokens, np.full(count, config.sample_prompt, np.int32)

  return python_windows.of_streams(config, train, held_out, prompts)


def _split(config, split):
  """Returns the documents of a split; one in `_STRIDE` is held out.

  They are chosen by a hash of the text, so that copies stay together. Of a file
  that is a single text, parts are chosen by their number.
  """
  found = records.load(config.corpus, name="--config.corpus")
  documents = [x.value if isinstance(x.value, str)
               else records.field(x, config.corpus_field) for x in found]
  if len(documents) > 1:
    chosen = [text for text in documents
              if python_corpus.split_of(text, _STRIDE) == split]
  else:
    held_out = split == python_corpus.HELD_OUT
    chosen = [part for i, part in enumerate(_parts(documents[0]))
              if (i % _STRIDE == _STRIDE - 1) == held_out]
  if not chosen:
    raise ValueError(f"--config.corpus={config.corpus!r}: none of its "
                     f"{len(documents)} documents is in the {split} split, "
                     "more are needed.")
  return chosen


def _parts(text):
  """Cuts a text at ends of lines into `_PARTS` parts of about the same size."""
  lines = text.splitlines(keepends=True)
  ends = np.cumsum([len(line) for line in lines])
  numbers = np.minimum(ends * _PARTS // (ends[-1] + 1), _PARTS - 1)
  return ["".join(line for line, number in zip(lines, numbers) if number == i)
          for i in range(_PARTS)]


def _encode(tokenizer, documents):
  """Encodes documents as `[n]` int32, each ended by the end of text."""
  end = tokenizers.eos_id(tokenizer)
  end = [] if end is None else [end]
  return np.concatenate([
      np.asarray(tokenizer_files.encode(
          tokenizer, text, add_special_tokens=False).ids + end, np.int32)
      for text in documents])
