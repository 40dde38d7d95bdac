"""Draws of methods that keep the target's distribution, with random sizes."""

import numpy as np

import decoding_jax as dj
from decoding_jax.speculation import expanders, verifiers

DEPTH = 3
_FIXED = verifiers.names(expanders.OF_FIXED_TREES)
_BEAM = verifiers.names(expanders.OF_BEAMS)
_BUDGET = verifiers.names([dj.Draws.PRUNED, dj.Draws.SHARED_NOISE])
_MASKED = verifiers.names([dj.Draws.WITHOUT_REPLACEMENT])


class Draws:
  """Random choices for a vocabulary; each method of a name draws its sizes."""

  def __init__(self, rng, vocab_size):
    self.rng, self.vocab_size = rng, vocab_size
    self.width = min(vocab_size, 3)

  def one_of(self, *values):
    return values[self.rng.integers(len(values))]

  def size(self, low, high):
    return int(self.rng.integers(low, high + 1))

  def branching(self, depth=DEPTH):
    return tuple(self.size(1, self.width) for _ in range(self.size(1, depth)))

  def children(self):
    """Returns children of each node, level after level, of a small tree."""
    levels, nodes = [], 1
    while not levels or nodes <= 7 and len(levels) < self.size(1, DEPTH):
      counts = [self.size(0, self.width) for _ in range(nodes)]
      counts[0] = max(counts[0], int(not any(counts)))
      levels.append(tuple(counts))
      nodes = sum(counts)
    return tuple(levels)


def _opt_tree(d):
  width, depth = d.size(1, d.vocab_size), d.size(1, DEPTH)
  return dict(nodes=d.size(depth, width * depth), width=width, depth=depth)


def _shared_budget(d):
  width, depth = d.size(1, d.vocab_size), d.size(1, DEPTH)
  return dict(nodes=d.one_of(0.5, 1, width * depth / 2), width=width,
              depth=depth, verification=d.one_of("match", *_BUDGET))


def _adaptive(d):
  rule = d.one_of("recursive", "traversal", "shared_gumbel")
  methods = (dj.methods.speculative(d.size(1, DEPTH), rule),
             dj.methods.rsd_s(d.width, d.size(1, DEPTH), rule))
  return dict(methods=methods, costs=(1, d.one_of(1.05, 1.3)),
              horizon=d.size(1, 4))


def _propd(d):
  branching = d.branching(2)
  nodes = int(np.cumprod(branching).sum())
  return dict(branching=branching, nodes=d.size(len(branching), nodes),
              layers=d.size(1, 2))


def _specinfer(d):
  # No more paths than tokens.
  expansion = d.one_of((1, 1), (1, 3), (2,), (2, 1), (3, 1))
  return d.one_of(dict(num_paths=d.size(1, d.width), depth=d.size(1, DEPTH)),
                  dict(expansion=expansion))


# By what drafts: names of methods, and their arguments.
_HEAD_OR_MODEL = {
    "speculative": lambda d: dict(depth=d.size(1, DEPTH),
                                  verification=d.one_of(*_FIXED)),
    "specinfer": _specinfer,
    "spectr": lambda d: dict(num_paths=d.size(1, d.width),
                             depth=d.size(1, DEPTH)),
    "rsd_c": lambda d: dict(branching=d.branching(),
                            verification=d.one_of(*_FIXED)),
    "rsd_s": lambda d: dict(width=d.size(1, d.vocab_size),
                            depth=d.size(1, DEPTH),
                            verification=d.one_of(*_BEAM)),
    "sequoia": lambda d: dict(children=d.children(),
                              verification=d.one_of(*_FIXED)),
    "opt_tree": _opt_tree, "shared_budget": _shared_budget,
    "propd": _propd, "adaptive": _adaptive,
    "copy_or_draft": lambda d: dict(
        d.one_of(dict(depth=1), dict(depth=2), dict(depth=1, width=2)),
        copies=d.size(2, DEPTH), min_ngram=d.size(1, 2), max_ngram=2)}
_DRAFTERS = {
    "head": _HEAD_OR_MODEL,
    "model": {
        **_HEAD_OR_MODEL, "pearl": lambda d: dict(depth=d.size(2, 4)),
        "ssd": lambda d: dict(depth=d.size(1, 3), guesses=d.width),
        "gsd": lambda d: dict(
            nodes=d.size(2, 5), width=d.size(2, 3), depth=2, branching=d.width,
            repeat=d.size(0, 2), min_share=d.one_of(0.0, 0.1))},
    "masked": {"masked_draft": lambda d: dict(
        branching=d.branching(), window=d.size(1, 5),
        verification=d.one_of(*_MASKED))},
    "prompts": {"ppd": lambda d: dict(widths=d.branching(), branching=d.width,
                                      short=1)},
    "nothing": {
        "prompt_lookup": lambda d: dict(
            depth=d.size(1, 3), num_paths=d.size(1, 3), max_ngram=d.size(1, 3)),
        "suffix": lambda d: dict(nodes=d.size(2, 5), depth=d.size(1, 3),
                                 num_paths=d.size(1, 4)),
        "token_recycling": lambda d: dict(widths=d.branching(),
                                          branching=d.width),
        "lookahead": lambda d: dict(ngram=d.size(2, 3), window=d.size(1, 3),
                                    guesses=d.size(1, d.width)),
        "aded": lambda d: dict(nodes=d.size(3, 5), depth=d.size(1, 3),
                               branching=d.width, buckets=16),
        "autoregressive": lambda d: {},
        "stochastic_beam_search": lambda d: dict(num_beams=d.size(1, d.width))}}
NAMES = frozenset(name for makers in _DRAFTERS.values() for name in makers)


def draw(draws, drafter):
  """Returns the name, the arguments and the method that they make."""
  name = draws.one_of(*_DRAFTERS[drafter])
  arguments = _DRAFTERS[drafter][name](draws)
  return name, arguments, getattr(dj.methods, name)(**arguments)
