"""Parallel prompt decoding (arXiv 2405.18628): the target guesses ahead itself.

Each scored node is followed by a chain of trained prompt tokens, -1, -2, ...,
which are never tested: the i-th predicts the token i + 1 after the node. The
guesses after the last accepted node fill the next tree, without another
forward.

Root and best path have chains of D prompt tokens, other nodes short ones. So a
row has one of two trees of equal size: a deep one, or a wide one as deep as a
short chain.
"""

import functools
import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from decoding_jax import sampling
from decoding_jax.kernels import buffers
from decoding_jax.runtime import token_buffer
from decoding_jax.speculation import best_first, tree as tree_lib
from decoding_jax.speculation.drafters import successor_table
from decoding_jax.types import Context, DecodeState, Drafter, Seen

# Level of a node that is never tested.
_NEVER = np.iinfo(np.int32).max


class _Trees(NamedTuple):
  """Nodes of the wide and the deep tree; chains come after drafted nodes."""
  # `[2, N]`, which of all guesses, or after them of the prompt tokens, a node
  # is.
  source: np.ndarray
  parents: np.ndarray  # `[2, N]`, counted from the root
  level: np.ndarray  # `[2, N]`, of a drafted node
  # `[2, 1 + C]`, the chain of the root and of each drafted node.
  first: np.ndarray
  length: np.ndarray  # `[2, 1 + C]`, prompt tokens of that chain


@functools.lru_cache(maxsize=None)
def ppd(widths: tuple[int, ...], branching: int, short: int) -> Drafter:
  """Makes the drafter of `methods.ppd`, with its arguments."""
  depth, size = len(widths), sum(widths)
  wide = (*widths[:short - 1], size - sum(widths[:short - 1]))
  trees = _joined([_tree(x, branching, depth, short) for x in (wide, widths)])
  layout = tree_lib.free_layout(trees.source.shape[1], depth, branching)
  return Drafter(
      layout, functools.partial(_init, depth, branching),
      functools.partial(_propose, depth, trees),
      functools.partial(_observe, depth, branching, trees), calls=0)


def _tree(widths, branching, depth, short):
  """Returns the parts of a tree, as in `_Trees` but for a row each."""
  layout = successor_table.template(widths, branching)
  source, parents, level, best, start = [], [], [], [True], 0
  for number, counts in enumerate(layout.children):
    end = 1 + len(source)
    for parent, count in enumerate(counts, start):
      for rank in range(count):
        source.append(number * branching + rank)
        parents.append(parent)
        level.append(number + 1)
        best.append(best[parent] and rank == 0)
    start = end
  length = [depth if x else short for x in best]
  first = 1 + len(source) + np.array([*itertools.accumulate(length, initial=0)])
  for node, (begin, count) in enumerate(zip(first, length)):
    source += [depth * branching + i for i in range(count)]
    parents += [node, *range(begin, begin + count - 1)]
    level += [_NEVER] * count
  return [source, parents, level, first[:-1], length]


def _joined(trees):
  """Returns two trees as `_Trees`, the shorter one filled up."""
  fill = 0, 0, _NEVER, 0, 0
  padded = []
  for parts, number in zip(zip(*trees), fill):
    size = max(map(len, parts))
    padded.append(np.array([[*part, *[number] * (size - len(part))]
                            for part in parts], np.int32))
  return _Trees(*padded)


def _init(depth, branching, context: Context, state: DecodeState):
  """Knows nothing yet: the first tree is a root with its chain."""
  del context
  batch = len(state.length)
  return state.replace(carry=(
      jnp.zeros((batch, depth, branching), jnp.int32),
      jnp.zeros(batch, jnp.int32)))


def _propose(depth, trees, keys, context: Context, state: DecodeState):
  """The tree of each row, and which of the two it is."""
  del keys, context
  guesses, known = state.carry
  is_full = (known == depth).astype(jnp.int32)
  prompts = -1 - jnp.arange(depth, dtype=jnp.int32)[None]
  tokens = jnp.concatenate(
      [guesses.reshape(len(known), -1),
       jnp.broadcast_to(prompts, (len(known), depth))], axis=1)
  source, parents, level = (jnp.asarray(x)[is_full] for x in trees[:3])
  return best_first.with_root(
      token_buffer.newest(state, 1)[:, 0],
      jnp.take_along_axis(tokens, source, axis=1), parents,
      level <= known[:, None]), is_full


def _observe(depth, branching, trees, context: Context, before: DecodeState,
             after: DecodeState, seen: Seen) -> DecodeState:
  """Reads the guesses after the last accepted node."""
  del context
  last = seen.verdict.path[:, -1]
  first, known = (jnp.asarray(x)[seen.pending, last]
                  for x in (trees.first, trees.length))
  # Of a short chain, what is beyond its end is not read.
  chain = first[:, None] + jnp.minimum(jnp.arange(depth, dtype=jnp.int32)[None],
                                       known[:, None] - 1)
  logits = buffers.take_along(seen.logits, chain[:, :, None], axis=1)
  best = sampling.top_k(logits.astype(jnp.float32), branching)[1]
  runs, (guesses, old) = seen.count > 0, before.carry
  return after.replace(carry=(
      jnp.where(runs[:, None, None], best.astype(jnp.int32), guesses),
      jnp.where(runs, known, old)))
