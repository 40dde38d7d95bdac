"""Prompts in batches of few shapes."""

import jax
import numpy as np

from decoding_jax.runtime import continuous_batching
from experiments.data import length_buckets


def make(config, prompts, expected=None, multiple=1):
  """Arranges prompts in batches of a few widths, each filled up to full size.

  Returns a list of (keys `[B]`, prompts `[B, P]`, lengths `[B]`), sorted by P,
  the last of a P filled with rows of its first; and `[R]`, the row of each
  prompt in their concatenation. `multiple` divides B; `expected` `[R]` are
  lengths of the texts, None for unknown.
  """
  # A row's key depends on the number of its prompt alone, so that its text does
  # not depend on the batch.
  key = jax.random.key(config.seed)
  lengths = np.array([len(prompt) for prompt in prompts], np.int32)
  batches, numbers = [], []
  for prompt_length, members in length_buckets.members(lengths, config.buckets):
    # A row that has finished waits for its batch: equally long ones share one.
    if expected is not None:
      members = members[np.argsort(np.take(expected, members), kind="stable")]
    for slots in row_numbers(len(members), config.queue or config.batch,
                             multiple):
      rows = members[slots]
      batches.append(batch_of(key, prompts, rows, prompt_length))
      numbers.append(rows)
  return batches, np.unique(np.concatenate(numbers), return_index=True)[1]


def batch_of(key, prompts, rows, prompt_length):
  """Returns a batch: keys `[B]`, prompts `[B, P]` of that P, lengths `[B]`."""
  lengths = np.array([len(prompts[row]) for row in rows], np.int32)
  padded = np.zeros((len(rows), prompt_length), np.int32)
  padded[np.arange(prompt_length) < lengths[:, None]] = np.concatenate(
      [prompts[row] for row in rows])
  return jax.vmap(jax.random.fold_in, (None, 0))(key, rows), padded, lengths


def one_of_each_shape(batches):
  """Returns the first batch of each shape: one program is compiled for each."""
  shapes = {}
  for batch in batches:
    shapes.setdefault(batch[1].shape, batch)
  return list(shapes.values())


def max_rows(batch, prompts, queued):
  """Returns the most rows that have a cache at a time."""
  count = min(batch, prompts)
  # New rows have caches of their own while they are prefilled.
  return count + (2 * continuous_batching.refilled(count) if queued else 0)


def row_numbers(count, batch, multiple=1):
  """Splits `count` row numbers into arrays `[B]` of one size, at most `batch`.

  `multiple` divides B; the last array is filled with the first rows.
  """
  number = -(-count // batch)
  size = -(-count // (number * multiple)) * multiple
  return [np.arange(start, start + size) % count
          for start in range(0, number * size, size)]
