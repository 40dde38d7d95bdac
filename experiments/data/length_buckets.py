"""Groups rows of many lengths into a few static widths."""

import numpy as np


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


def members(lengths, count):
  """Groups rows: list of (width to pad to, ascending row numbers)."""
  chosen = widths(lengths, count)
  places = np.searchsorted(chosen, lengths)
  return [(int(width), np.flatnonzero(places == i))
          for i, width in enumerate(chosen)]
