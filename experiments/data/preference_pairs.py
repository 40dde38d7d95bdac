"""Training data of reward models: pairs of texts of which people prefer one.

Each line of a JSONL file, perhaps gzipped, has a `chosen` and a `rejected`
dialogue. Of a long one the end is used. A hash of the texts' common beginning
puts a pair into the train or the held-out split, so that no question is in
both.
"""

import os
import pathlib
import re

import numpy as np

from experiments.data import batches
from experiments.data import python_corpus
from experiments.data import records
from models.text import tokenizers

# One dialogue in `_STRIDE` is held out.
_STRIDE = 4
_SIDES = ("chosen", "rejected")
ANSWER = "\n\nAssistant:"
_TURN = re.compile(r"(?<=.)(?=\n\nHuman:)", re.DOTALL)
_SPEAKER = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def check(config) -> None:
  """Raises a ValueError for settings that do not fit preferences."""
  batches.check_ascending(config)
  if config.teacher:
    raise ValueError(f"--config.teacher={config.teacher!r}: a reward model, of "
                     "--config.preferences, has none.")


def texts(config) -> list[str]:
  """Returns the texts that a tokenizer is trained on."""
  return [text for pair in _read(config, python_corpus.TRAIN) for text in pair]


def data(config, tokenizer) -> batches.Data:
  """Makes pairs of rows: the chosen text, then the rejected one."""
  (train, sizes), (held_out, _) = (
      _encode(tokenizer, _read(config, split), max(config.windows))
      for split in (python_corpus.TRAIN, python_corpus.HELD_OUT))

  def train_batch(step, _):
    length, chosen = batches.of_one_length(config, sizes, step)
    return _batch(train, chosen, length)

  def held_out_batch(count):
    return _batch(held_out, batches.spread(len(held_out), count),
                  max(config.windows))

  return batches.Data(train_batch, held_out_batch)


def read(folder, name, split) -> list[tuple[str, str]]:
  """Reads (chosen, rejected) of one split, in the order of the file."""
  path = pathlib.Path(folder) / name
  pairs = [tuple(records.field(record, side) for side in _SIDES)
           for record in records.load(str(path), name="--config.corpus")]
  pairs = [
      pair for pair in pairs
      if python_corpus.split_of(os.path.commonprefix(pair), _STRIDE) == split
  ]
  if not pairs:
    raise ValueError(f"'{path}' has no {split} dialogue.")
  return pairs


def encode(tokenizer, text: str) -> list[int]:
  """Encodes a dialogue, with an end of text after each answer but the last.

  There a model is to stop:

    \\n\\nHuman: hi\\n\\nAssistant: hello<|endoftext|>\\n\\nHuman: help me
  """
  turns = tokenizer.encode_batch(_TURN.split(text))
  end = tokenizers.eos_id(tokenizer)
  return [token for turn in turns for token in [*turn.ids, end]][:-1]


def messages(text: str) -> list[dict[str, str]]:
  """Splits a dialogue into the messages of a chat."""
  _, *parts = _SPEAKER.split(text)
  return [{"role": _ROLES[name], "content": said.strip()}
          for name, said in zip(parts[::2], parts[1::2])]


def _read(config, split):
  return read(config.corpus, config.preferences, split)


def _encode(tokenizer, pairs, longest):
  """Returns the last tokens of each text, and the longer length of a pair."""
  rows = [[encoding.ids[-longest:] for encoding in tokenizer.encode_batch(pair)]
          for pair in pairs]
  return rows, np.array([max(1, *map(len, pair)) for pair in rows])


def _batch(pairs, chosen, length):
  """Makes rows 2i and 2i + 1 of pair i, with weights at the last tokens."""
  rows = [row for i in chosen for row in pairs[i]]
  tokens = np.zeros((len(rows), length + 1), np.int32)
  weights = np.zeros((len(rows), length), np.float32)
  for i, row in enumerate(rows):
    tokens[i, :len(row)] = row
    weights[i, len(row) - 1] = 1
  return batches.Batch(tokens, weights)
