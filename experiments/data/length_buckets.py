"""Groups rows of many lengths into a few static widths."""

import numpy as np


def widths(lengths, count):
  """Returns the widths to pad rows to that minimize padding.

  Each optimal width is the length of some row, so they are found exactly, by
  dynamic programming over the distinct lengths.

  Args:
    lengths: `[R]` positive int, R > 0.
    count: number of widths, at most; at least 1.

  Returns:
    `[W]` ascending, W <= `count`; the last one is the longest row.
  """
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
  end, found = len(sizes), []
  for start in reversed(starts):
    found.append(sizes[end - 1])
    end = start[end]
  return np.array(found[::-1])


def members(lengths, count):
  """Groups rows by the width that they are padded to.

  Args:
    lengths: `[R]` positive int, R > 0.
    count: number of widths, at most.

  Returns:
    list of (width, ascending row numbers).
  """
  chosen = widths(lengths, count)
  places = np.searchsorted(chosen, lengths)
  return [(int(width), np.flatnonzero(places == i))
          for i, width in enumerate(chosen)]
