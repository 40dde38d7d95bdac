"""Training data: windows of Python modules, of documents or of dialogues.

The texts of a split are one stream of tokens, with an end of text after each.
`config.corpus` is a folder of Python modules, by default the standard
library; or a file of documents; or, with `config.dialogues`, the folder of a
file of `preference_pairs`, whose dialogues are all learned, so that answers
differ enough for a reward to choose from.
"""

import pathlib

import numpy as np

from experiments.data import batches
from experiments.data import preference_pairs
from experiments.data import python_corpus
from experiments.data import records
from models.text import tokenizer_files
from models.text import tokenizers

# A file that is one text is cut into this many parts, of whole lines.
_PARTS = 64
# One document in this many is held out.
_STRIDE = 16


def check(config) -> None:
  """Raises a ValueError for samples that no window fits in."""
  for name, value in (("windows", tuple(config.windows)),
                      ("sample_prompt", config.sample_prompt)):
    if config.sample_fraction and config.sample_length <= np.max(value):
      raise ValueError(f"--config.sample_length={config.sample_length} must "
                       f"exceed --config.{name}={value}.")


def texts(config) -> list[str]:
  """Returns the texts that a tokenizer is trained on."""
  split = python_corpus.TRAIN
  if config.dialogues:
    return [text for pair in _pairs(config, split) for text in pair]
  if has_file(config):
    return _documents(config, split)
  return [text for _, text in python_corpus.modules(split,
                                                    config.corpus or None)]


def data(config, tokenizer) -> batches.Data:
  """Makes windows of the streams of `config.corpus`."""
  train, held_out = (_tokens(config, tokenizer, split) for split in (
      python_corpus.TRAIN, python_corpus.HELD_OUT))

  def prompts(count):
    size = config.sample_prompt
    if config.dialogues:  # They begin as dialogues and questions do.
      ends = np.flatnonzero(train[:-size] == tokenizers.eos_id(tokenizer))
      starts = np.random.default_rng(config.seed).choice(ends, count) + 1
      tokens = train[starts[:, None] + np.arange(size)]
    else:
      tokens = np.asarray(python_corpus.passages(
          tokenizer, count, size, config.seed, texts(config)), np.int32)
    return tokens, np.full(count, size, np.int32)

  return windows(config, train, held_out, prompts)


def windows(config, train, held_out, prompts) -> batches.Data:
  """Makes windows of streams, `[n]` to train on and `[m]` held out."""
  # There is no `eos_id`: after an end of text a teacher starts another.
  shorter, longest = min(len(train), len(held_out)), max(config.windows)
  if shorter <= longest:
    raise ValueError(f"--config.windows={tuple(config.windows)} must be "
                     f"shorter than the splits of the corpus, {shorter} "
                     "tokens.")
  return batches.Data(
      train=lambda step, samples: batches.whole(
          batches.train_batch(config, step, train, samples)),
      held_out=lambda count: batches.whole(
          batches.even_windows(held_out, count, longest)),
      prompts=prompts)


def _tokens(config, tokenizer, split):
  """Returns the stream of a split, `[n]` int32."""
  end = tokenizers.eos_id(tokenizer)
  if config.dialogues:
    # All chosen ones first, so that the texts of a pair are far apart.
    return np.array([token for side in zip(*_pairs(config, split))
                     for text in side for token in [
                         *preference_pairs.encode(tokenizer, text), end]],
                    np.int32)
  if not has_file(config):
    return python_corpus.encode(tokenizer, split, config.corpus or None)
  return np.concatenate([np.asarray(
      tokenizer_files.encode(tokenizer, text, add_special_tokens=False).ids
      + [end] * (end is not None), np.int32)
                         for text in _documents(config, split)])


def has_file(config) -> bool:
  """Returns whether the streams come from a file, not from Python modules."""
  return bool(config.dialogues) or bool(config.corpus) and pathlib.Path(
      config.corpus).is_file()


def _pairs(config, split):
  return preference_pairs.read(config.corpus, config.dialogues, split)


def _documents(config, split):
  """Returns the documents of a split; one in `_STRIDE` is held out."""
  # They are chosen by a hash of the text, so that copies stay together. Of a
  # file that is a single text, parts are chosen by their number.
  documents = records.texts(config.corpus, "--config.corpus",
                            config.corpus_field)
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
