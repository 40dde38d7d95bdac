"""Targets and drafters of a few tokens, the same each time."""

import numpy as np

# What drafts: a distribution near the target's, one that is nearly certain,
# one without some tokens, and one with none of the target's.
DRAFTERS = ("flat", "sharp", "zeros", "disjoint")


def pair(name: str, vocab_size: int, seed: int = 0):
  """Returns `[V, V]` float64 of a target and of the drafter of this name."""
  rng = np.random.default_rng((vocab_size, DRAFTERS.index(name), seed))
  rows = [_node(rng, name, vocab_size) for _ in range(vocab_size)]
  return tuple(map(np.stack, zip(*rows)))


def nodes(number: int, vocab_size: int):
  """Yields names of drafters, and targets and drafts `[V]`."""
  rng = np.random.default_rng(number)
  for i in range(number):
    name = DRAFTERS[i % len(DRAFTERS)]
    yield name, *_node(rng, name, vocab_size)


def _node(rng, name, size):
  target, draft = rng.dirichlet(np.ones(size), 2)
  order = np.arange(size) if name == "disjoint" else rng.permutation(size)
  if name == "flat":
    draft = 0.5 * draft + 0.5 / size
  elif name == "sharp":
    draft = 0.02 * draft + 0.98 * (np.arange(size) == order[0])
  elif name == "zeros" and size > 2:
    target[order[:size // 3]] = 0
    draft[order[1:1 + size // 3]] = 0
  elif name == "disjoint":
    target[:size // 2], draft[size // 2:] = 0, 0
  return target / target.sum(), draft / draft.sum()
