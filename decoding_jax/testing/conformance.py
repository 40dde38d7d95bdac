"""Tests whether a model keeps the contract of `decoding_jax.LanguageModel`.

A model that misreads a mask or a position still writes text, without an error.
`check_model` calls it in every way that the library does, and compares with
whole texts.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import types
from decoding_jax.runtime import cache as cache_lib

# Committed tokens of the rows, and the levels of a tree after them.
_LENGTHS = np.array([1, 4, 6])
_PARENTS = np.array([-1, 0, 0, 1, 1, 4, 3])
_LEVELS = (1, 2, 2, 2)
# Tokens of a part of the prefix; as many as a level has, to compile less.
_PART = 2
# The path of the tree that is committed, and slots of the cache.
_PATH = np.array([0, 1, 4, 5])
_SLOTS = 32


class _Case(NamedTuple):
  """Attributes: `lm`, `params`, `prefix [B, P]`, `tree [B, M]`, `plain`."""
  lm: types.LanguageModel
  params: types.Params
  prefix: np.ndarray
  tree: np.ndarray
  plain: np.ndarray


def check_model(lm: types.LanguageModel, params: types.Params, function=None,
                tolerance: float = 1e-3, seed: int = 0):
  """Raises unless all ways of calling a model agree.

  Args:
    lm: the model, of at least 13 positions.
    params: its parameters.
    function: `(params, tokens [n, L]) -> logits [n, L, V]`, what the model
      should compute; None for its own forward of a whole text as one block.
    tolerance: how far logits may be apart, relative to the largest of their
      token; in bfloat16 0.1 is about right.
    seed: of the tokens.

  Raises:
    AssertionError: naming the call, row and token at which the logits differ,
      and what the model may read wrongly.
    ValueError: if a tensor is of another shape or type than it should be.
  """
  if lm.max_length and lm.max_length < _LENGTHS.max() + len(_LEVELS) + 3:
    raise ValueError(f"lm.max_length={lm.max_length}: at least "
                     f"{_LENGTHS.max() + len(_LEVELS) + 3} is needed.")
  rng = np.random.default_rng(seed)
  draw = lambda size: rng.integers(0, lm.vocab_size, (len(_LENGTHS), size))
  prefix, tree = draw(_LENGTHS.max()), draw(len(_PARENTS))
  read = function or (lambda params, tokens: (
      cache_lib.whole_pass(lm, params, tokens)[0]))
  texts = np.array([[_text(row, prefix, tree, node) for node in range(
      len(_PARENTS))] for row in range(len(_LENGTHS))])
  plain = np.asarray(jax.jit(read)(params, jnp.asarray(
      texts.reshape(-1, texts.shape[-1]), jnp.int32)), np.float32)
  ends = _LENGTHS[:, None] + _depths()
  plain = np.take_along_axis(plain.reshape(*texts.shape, -1),
                             ends[..., None, None], 2)[:, :, 0]
  if plain.shape[-1] != lm.vocab_size or not np.isfinite(plain.max(-1)).all():
    raise ValueError(f"logits of shape {plain.shape}: finite ones of V="
                     f"{lm.vocab_size} tokens are needed.")
  case = _Case(lm, params, prefix, tree, plain)
  for name, hint, call in _CALLS:
    _compare(name, hint, np.asarray(call(case), np.float32), plain, tolerance)


def _compare(name, hint, logits, plain, tolerance):
  """Raises AssertionError where logits `[B, M, V]` are too far apart."""
  scale = np.where(np.isfinite(plain), np.abs(plain), 0).max(-1, keepdims=True)
  with np.errstate(divide="ignore", invalid="ignore"):
    # Both may forbid a token.
    apart = np.where(logits == plain, 0, np.abs(logits - plain) / scale)
  apart = np.where(np.isnan(apart), np.inf, apart).max(axis=-1)
  if apart.max() > tolerance:
    row, node = np.unravel_index(apart.argmax(), apart.shape)
    raise AssertionError(
        f"{name}: logits of row {row}, which has {_LENGTHS[row]} committed "
        f"tokens, at node {node} of depth {_depths()[node]} are off by "
        f"{apart.max():.2g} of the largest one, of which {tolerance:g} is "
        f"allowed. {hint}")


def _at_once(case):
  """Scores the whole tree in one call, as a target does."""
  return _score(case, *_committed(case), 0, len(_PARENTS))[0]


def _by_levels(case):
  """Scores level after level into one block, as a drafter does."""
  cache, block = _committed(case)
  parts, start = [], 0
  for width in _LEVELS:
    logits, block = _score(case, cache, block, start, width)
    parts.append(logits)
    start += width
  return np.concatenate(parts, axis=1)


def _after_a_commit(case):
  """Scores the last node of a path after a commit of all others. The other
  nodes keep what they should be."""
  cache, block = _committed(case)
  _, block = _score(case, cache, block, 0, len(_PARENTS))
  slots = jnp.broadcast_to(jnp.asarray(_PATH), (len(_LENGTHS), len(_PATH)))
  cache = cache_lib.commit(cache, block, slots, jnp.full(
      len(_LENGTHS), len(_PATH) - 1, jnp.int32))
  logits, _ = _forward(case, case.tree[:, _PATH[-1:]], cache.length[:, None],
                       cache, _empty(cache), 0, np.eye(1, len(_PARENTS)))
  patched = case.plain.copy()
  patched[:, _PATH[-1]] = np.asarray(logits, np.float32)[:, 0]
  return patched


# What is called, and what such a call alone depends on.
_CALLS = (
    ("forward of a tree", "Does a token attend to the whole cache up to "
     "`cache.length` of its row, and to what its mask names, and to nothing "
     "else? Are `positions` used?", _at_once),
    ("forward of level after level", "Do fresh keys and values go to `slot` "
     "and after, and are those that stand in the block before them read?",
     _by_levels),
    ("forward after a commit", "Are all that a token leaves after in "
     "`block.keys` and `block.values`, and read from `cache`?",
     _after_a_commit),
)


def _committed(case):
  """Returns a cache of each row's prefix, scored in parts; an empty block. What
  stands after a shorter prefix is junk."""
  cache = case.lm.init_cache(len(_LENGTHS), _SLOTS)
  order = np.broadcast_to(np.arange(_PART), (len(_LENGTHS), _PART))
  for start in range(0, case.prefix.shape[1], _PART):
    _, block = _forward(case, case.prefix[:, start:start + _PART],
                        start + order, cache, _empty(cache), 0,
                        np.tri(_PART, len(_PARENTS)))
    cache = cache_lib.commit(cache, block, jnp.asarray(order), jnp.asarray(
        np.clip(_LENGTHS - start, 0, _PART), jnp.int32))
  return cache, _empty(cache)


def _score(case, cache, block, start, width):
  """Returns logits of nodes of the tree from `start` on, and the block."""
  nodes = np.arange(start, start + width)
  return _forward(case, case.tree[:, nodes],
                  cache.length[:, None] + _depths()[None, nodes], cache, block,
                  start, _mask()[nodes])


def _forward(case, tokens, positions, cache, block, slot, mask):
  mask = np.broadcast_to(mask > 0, (*tokens.shape, len(_PARENTS)))
  return _call(case.lm, case.params, jnp.asarray(tokens, jnp.int32),
               jnp.asarray(positions, jnp.int32), cache, block, slot,
               jnp.asarray(mask))


def _empty(cache):
  return cache_lib.init_block(cache, len(_PARENTS))


@functools.partial(jax.jit, static_argnums=0)
def _call(lm, params, *arguments):
  return lm.forward(params, *arguments)


def _text(row, prefix, tree, node):
  """Returns `[L]`, the text that ends with a node; 0 after it."""
  path = np.flatnonzero(_mask()[node])
  text = np.concatenate([prefix[row, :_LENGTHS[row]], tree[row, path]])
  return np.pad(text, (0, _LENGTHS.max() + len(_LEVELS) - len(text)))


@functools.lru_cache(maxsize=None)
def _mask():
  """Returns `[M, M]` bool, each node and its ancestors."""
  mask = np.eye(len(_PARENTS), dtype=bool)
  for node, parent in enumerate(_PARENTS[1:], 1):
    mask[node] |= mask[parent]
  return mask


def _depths():
  return _mask().sum(axis=1) - 1
