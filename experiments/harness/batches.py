"""Prompts in batches of few shapes."""

import jax
import numpy as np

from decoding_jax.runtime import continuous_batching


def make(config, prompts, expected=None, multiple=1):
  """Arranges prompts in batches of a few widths, each filled up to full size.

  Returns a list of (keys `[B]`, prompts `[B, P]`, lengths `[B]`), sorted by P,
  the last of a P filled with rows of its first; and `[R]`, the row of each
  prompt in their concatenation. `multiple` divides B; `expected` `[R]` are
  lengths of the texts, None for unknown.
  """
  batches, numbers = zip(*arranged(
      jax.random.key(config.seed), prompts, np.arange(len(prompts)),
      config.buckets, config.queue or config.batch, multiple, expected))
  return list(batches), np.unique(np.concatenate(numbers), return_index=True)[1]


def arranged(key, prompts, rows, buckets, size, multiple, expected=None):
  """Yields batches of at most `size` of the rows `[R]`, and their places `[B]`.

  A row's key depends on its number alone, so that its text does not depend on
  the batch. `prompts` are by number; for others see `make`.
  """
  lengths = np.array([len(prompts[row]) for row in rows], np.int32)
  for prompt_length, members in by_width(lengths, buckets):
    # A row that has finished waits for its batch: equally long ones share one.
    if expected is not None:
      members = members[np.argsort(np.take(expected, members), kind="stable")]
    for slots in row_numbers(len(members), size, multiple):
      yield batch_of(key, prompts, rows[members[slots]], prompt_length), (
          members[slots])


def widths(lengths, count):
  """Returns the at most `count` ascending widths that need least padding."""
  # Each optimal width is one of `lengths` `[R]`, so they are exact, by dynamic
  # programming over the distinct ones; the last is the longest.
  sizes, rows = np.unique(lengths, return_counts=True)
  # `below[j]`: number of rows of the first j sizes.
  below = np.concatenate([[0], np.cumsum(rows)])
  # `cost[j]`: tokens of the rows of the first j sizes, all of them padded.
  cost = np.where(np.arange(len(sizes) + 1), np.inf, 0.0)
  starts = []
  for _ in range(min(count, len(sizes))):
    # `[i, j]`: sizes i..j-1 make one more bucket.
    costs = cost[:, None] + (below - below[:, None]) * np.append(0, sizes)
    costs[np.tril_indices(len(costs))] = np.inf
    starts.append(costs.argmin(axis=0))
    cost = costs.min(axis=0)
  end, chosen = len(sizes), []
  for start in reversed(starts):
    chosen.append(sizes[end - 1])
    end = start[end]
  return np.array(chosen[::-1])


def by_width(lengths, count):
  """Groups rows: list of (width to pad to, ascending row numbers)."""
  chosen = widths(lengths, count)
  places = np.searchsorted(chosen, lengths)
  return [(int(width), np.flatnonzero(places == i))
          for i, width in enumerate(chosen)]


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
