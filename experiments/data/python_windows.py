"""Training data: windows of Python source."""

import numpy as np

from experiments.data import batches
from experiments.data import python_corpus


def check(config) -> None:
  """Raises a ValueError for samples that no window fits in."""
  if config.sample_fraction and config.sample_length <= max(config.windows):
    raise ValueError(f"--config.sample_length={config.sample_length} must "
                     f"exceed --config.windows={tuple(config.windows)}.")
  if config.sample_fraction and config.sample_length <= config.sample_prompt:
    raise ValueError(f"--config.sample_length={config.sample_length} must "
                     f"exceed --config.sample_prompt={config.sample_prompt}.")


def texts(config) -> list[str]:
  """Returns the texts that a tokenizer is trained on."""
  return [
      text
      for _, text in python_corpus.modules(python_corpus.TRAIN, _root(config))
  ]


def data(config, tokenizer) -> batches.Data:
  """Makes windows of the corpus `config.corpus`."""
  train, held_out = (python_corpus.encode(tokenizer, split, _root(config))
                     for split in (python_corpus.TRAIN, python_corpus.HELD_OUT))

  def prompts(count):
    tokens = np.asarray(python_corpus.prompts(
        tokenizer, count, config.sample_prompt, seed=config.seed,
        split=python_corpus.TRAIN, root=_root(config)), np.int32)
    return tokens, np.full(count, config.sample_prompt, np.int32)

  return of_streams(config, train, held_out, prompts)


def of_streams(config, train, held_out, prompts) -> batches.Data:
  """Makes windows of token streams, `[n]` to train on and `[m]` held out.

  There is no `eos_id`: after an end of text a teacher starts another.
  """
  shorter = min(len(train), len(held_out))
  if shorter <= max(config.windows):
    raise ValueError(f"--config.windows={tuple(config.windows)} must be "
                     f"shorter than the splits of the corpus, {shorter} "
                     "tokens.")
  return batches.Data(
      train=lambda step, samples: batches.whole(
          batches.train_batch(config, step, train, samples)),
      held_out=lambda count: batches.whole(
          batches.even_windows(held_out, count, max(config.windows))),
      prompts=prompts, eos_id=None)


def _root(config):
  return config.corpus or None
