"""Batches for training and evaluation: rows of tokens with weights."""

from typing import Callable, NamedTuple, Optional

import numpy as np


class Batch(NamedTuple):
  """Rows of text."""
  tokens: np.ndarray  # `[B, T + 1]` int32, inputs and targets overlapping
  weights: np.ndarray  # `[B, T]` float32, of the loss of each target
  # `[B]` int32, their numbers in `Data.rows`; None without it.
  rows: Optional[np.ndarray] = None
  # Of the teacher, `[B, T, F]` of each layer that is kept; none where they are
  # not on disk, see `experiments.training.feature_shards`.
  features: tuple = ()


class Data(NamedTuple):
  """Training and held-out data of a run; all functions are deterministic."""
  # `(step, samples) -> Batch`, a function of the step, so that a resumed run
  # sees the same batches; `samples` of `own_texts`, or None.
  train: Callable[[int, Optional[np.ndarray]], Batch]
  held_out: Callable[[int], Batch]  # `(count) -> Batch` of at most `count` rows
  # `(count) -> (tokens [R, P], lengths [R])` of the train split, which a
  # teacher continues; None without a teacher.
  prompts: Optional[Callable[[int], tuple[np.ndarray, np.ndarray]]] = None
  # Token that ends a text of the teacher; None: another text follows.
  eos_id: Optional[int] = None
  # `(tokens [R, L], ends [R])`, all texts that batches take, the held-out ones
  # included; None if each batch draws its own.
  rows: Optional[tuple[np.ndarray, np.ndarray]] = None


def whole(tokens: np.ndarray) -> Batch:
  """Makes a batch of rows `[B, T + 1]` whose targets have equal weights."""
  return Batch(tokens, np.ones(tokens[:, 1:].shape, np.float32))


def joined(parts) -> Batch:
  """Makes one batch of the tokens and weights of several."""
  return Batch(np.concatenate([part.tokens for part in parts]),
               np.concatenate([part.weights for part in parts]))


def train_batch(config, step: int, tokens: np.ndarray,
                samples: np.ndarray | None = None) -> np.ndarray:
  """Draws random windows `[B, T + 1]`, the same for the same step."""
  # Windows take turns in length. `sample_fraction` of the rows are from
  # `samples` `[R, L]`, the others from the corpus `[n]`.
  rng = np.random.default_rng((config.seed, step))
  length = config.windows[step % len(config.windows)]
  rows = max(1, config.batch_tokens // length)
  sampled = 0 if samples is None else round(config.sample_fraction * rows)
  offsets = np.arange(length + 1)
  starts = rng.integers(len(tokens) - length, size=rows - sampled)
  windows = [tokens[starts[:, None] + offsets]]
  if sampled:
    row = rng.integers(len(samples), size=sampled)
    start = rng.integers(samples.shape[1] - length, size=sampled)
    windows.append(samples[row[:, None], start[:, None] + offsets])
  return np.concatenate(windows)


def even_windows(tokens: np.ndarray, count: int, length: int) -> np.ndarray:
  """Returns at most `count` windows `[W, length + 1]`, evenly over `[n]`."""
  count = min(count, (len(tokens) - 1) // length)
  starts = spread(len(tokens) - length, count)
  return tokens[starts[:, None] + np.arange(length + 1)]


def spread(total: int, count: int) -> np.ndarray:
  """Returns at most `count` row numbers, evenly over `total` rows."""
  return np.linspace(0, total - 1, min(count, total)).astype(np.int64)


def check_ascending(config) -> None:
  """Raises a ValueError unless rows can be padded to `config.windows`."""
  if list(config.windows) != sorted(set(config.windows)):
    raise ValueError(f"--config.windows={tuple(config.windows)} must ascend.")


def padded(config, sizes: np.ndarray) -> np.ndarray:
  """Returns `[R]` int, the shortest of `config.windows` that each row fits."""
  return np.take(config.windows, np.searchsorted(config.windows, sizes))


def of_one_length(config, sizes: np.ndarray,
                  step: int) -> tuple[int, np.ndarray]:
  """Chooses rows of about the same size, so that there is little padding."""
  # An epoch takes all rows once, and those that fill its last batches twice. Of
  # rows of `sizes` `[R]` tokens returns the length to pad to, and numbers
  # `[B]`.
  lengths = padded(config, sizes)
  rows = [max(1, config.batch_tokens // length) for length in config.windows]
  batches = [-(-np.sum(lengths == length) // count)
             for length, count in zip(config.windows, rows)]
  epoch, index = divmod(step, sum(batches))
  order = np.random.default_rng((config.seed, epoch)).permutation(
      np.repeat(np.arange(len(batches)), batches))
  bucket = order[index]
  length = config.windows[bucket]
  members = np.random.default_rng((config.seed, epoch, bucket)).permutation(
      np.flatnonzero(lengths == length))
  first = np.sum(order[:index] == bucket) * rows[bucket]
  return length, np.take(members, first + np.arange(rows[bucket]), mode="wrap")
