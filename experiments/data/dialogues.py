"""Training a language model on the dialogues of `preference_pairs`.

Both the preferred and the rejected ones are used, so that answers differ enough
for a reward to choose from. An end of text follows every answer, where a model
is to stop:

    \\n\\nHuman: hi\\n\\nAssistant: hello<|endoftext|>\\n\\nHuman: help me
"""

import re

import numpy as np

from experiments.data import batches
from experiments.data import preference_pairs
from experiments.data import python_corpus
from experiments.data import python_windows
from models.text import tokenizers

ANSWER = "\n\nAssistant:"
_TURN = re.compile(r"(?<=.)(?=\n\nHuman:)", re.DOTALL)
_SPEAKER = re.compile(r"\n\n(Human|Assistant):")
_ROLES = {"Human": "user", "Assistant": "assistant"}


def check(config) -> None:
  """Raises a ValueError for samples that no window fits in."""
  python_windows.check(config)


def texts(config) -> list[str]:
  """Returns the texts that a tokenizer is trained on."""
  return [text for pair in _pairs(config, python_corpus.TRAIN) for text in pair]


def data(config, tokenizer) -> batches.Data:
  """Makes windows of all dialogues in a row, first the chosen ones."""
  train, held_out = (_stream(tokenizer, _pairs(config, split))
                     for split in (python_corpus.TRAIN, python_corpus.HELD_OUT))
  size = config.sample_prompt
  ends = np.flatnonzero(train[:-size] == tokenizers.eos_id(tokenizer))

  def prompts(count):
    starts = np.random.default_rng(config.seed).choice(ends, count) + 1
    return (train[starts[:, None] + np.arange(size)],
            np.full(count, size, np.int32))

  return python_windows.of_streams(config, train, held_out, prompts)


def encode(tokenizer, text: str) -> list[int]:
  """Encodes a dialogue, with an end of text after each answer but the last."""
  turns = tokenizer.encode_batch(_TURN.split(text))
  end = tokenizers.eos_id(tokenizer)
  return [token for turn in turns for token in [*turn.ids, end]][:-1]


def messages(text: str) -> list[dict[str, str]]:
  """Splits a dialogue into the messages of a chat."""
  _, *parts = _SPEAKER.split(text)
  return [{"role": _ROLES[name], "content": said.strip()}
          for name, said in zip(parts[::2], parts[1::2])]


def _pairs(config, split):
  return preference_pairs.read(config.corpus, config.dialogues, split)


def _stream(tokenizer, pairs):
  """Returns tokens `[n]` int32; dialogues of a pair are far from each other."""
  end = tokenizers.eos_id(tokenizer)
  return np.array([token for side in zip(*pairs) for text in side
                   for token in [*encode(tokenizer, text), end]], np.int32)
