"""Lookahead decoding (arXiv 2402.02057): n-grams of a Jacobi iteration.

The target also scores a window of guesses: N - 1 rows of W columns, each row
made from the row before. A column and the target's output for its last row form
an N-gram. A row pools N-grams by first token, newest first, and drafts those
that begin at the root.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import sampling
from decoding_jax.kernels import buffers
from decoding_jax.runtime import token_buffer
from decoding_jax.speculation import best_first, tree as tree_lib
from decoding_jax.types import Context, DecodeState, Drafter, NONE, Seen


@functools.lru_cache(maxsize=None)
def lookahead(ngram: int, window: int, guesses: int, buckets: int,
              from_text: bool, by_one: bool) -> Drafter:
  """Makes the drafter of `methods.lookahead`, with its arguments."""
  # Nodes of the window; of the rest of its first row hang the other rows.
  grid = np.arange((ngram - 1) * window).reshape(ngram - 1, window)
  grid = np.where(grid > 0, guesses * (ngram - 1) + grid, 0).astype(np.int32)
  parents = np.concatenate([grid[0, :-1], grid[:-1].ravel()])
  layout = tree_lib.free_layout(int(grid.max()) or guesses, ngram - 1,
                                guesses)
  init = functools.partial(_init, grid.shape, (buckets, guesses, ngram),
                           from_text)
  return Drafter(layout, init, functools.partial(_propose, parents),
                 functools.partial(_observe, grid[-1], from_text, by_one),
                 calls=0)


def _pooled(pool, grams, valid):
  """Puts N-grams `[C, N]` at the front of their buckets, in one row."""
  def put(i, pool):
    gram, bucket = grams[i], pool[grams[i, 0] % len(pool)]
    same = (bucket == gram[None]).all(axis=1)
    # What was before its last position, or the end, moves on by one.
    moves = jnp.arange(len(bucket)) <= jnp.where(
        same.any(), jnp.argmax(same), len(bucket))
    moved = jnp.where(moves[:, None], jnp.roll(bucket, 1, axis=0), bucket)
    at = jnp.where(valid[i], gram[0] % len(pool), len(pool))
    return pool.at[at].set(moved.at[0].set(gram), mode="drop")

  return jax.lax.fori_loop(0, len(grams), put, pool)


def _init(window, shape, from_text, context: Context, state: DecodeState):
  prompts, lengths = context.prompts, context.prompt_lengths[:, None]
  # Guesses to begin with: the prompt, again and again.
  places = jnp.arange(np.prod(window))[None] % lengths
  guesses = buffers.take_along(prompts, places, axis=1)
  buckets = min(shape[0], context.target.vocab_size)
  pool = jnp.full((len(prompts), buckets, *shape[1:]), NONE, jnp.int32)
  if from_text:
    grams = jnp.stack([jnp.roll(prompts, -i, 1) for i in range(shape[-1])], -1)
    ends = shape[-1] + jnp.arange(prompts.shape[1])[None]
    pool = jax.vmap(_pooled)(pool, grams, ends <= lengths)
  return state.replace(carry=(guesses.reshape(-1, *window), pool))


def _propose(parents, keys, context: Context, state: DecodeState):
  del keys, context
  window, pool = state.carry
  root = token_buffer.newest(state, 1)[:, 0]
  window = window.at[:, 0, 0].set(root)
  grams = jax.vmap(lambda pool, x: pool[x % len(pool)])(pool, root)
  known = grams[:, :, :1] == root[:, None, None]
  # Equal beginnings are one branch, the first one's.
  same = (grams[:, :, None] == grams[:, None]) & known[:, None]
  first = jnp.argmax(jnp.cumprod(same, axis=-1), axis=2)[..., 1:]
  order = jnp.arange(first[0].size).reshape(1, *first.shape[1:])
  above = 1 + jnp.take_along_axis(order, first, axis=1)
  above = jnp.pad(above[..., :-1], ((0, 0), (0, 0), (1, 0))).astype(jnp.int32)
  valid = known & (first == jnp.arange(first.shape[1])[None, :, None])
  rest = window.reshape(len(root), -1)[:, 1:]
  flat = lambda x, y: jnp.concatenate([x.reshape(len(root), -1), y], axis=1)
  return best_first.with_root(
      root, flat(jnp.maximum(grams[..., 1:], 0), rest),
      flat(above, jnp.broadcast_to(parents, rest.shape)),
      flat(valid, jnp.zeros(rest.shape, bool))), window


def _committed(before: DecodeState, after: DecodeState, ngram, count):
  """The N-grams `[B, N, N]` that end in new tokens, and which there are."""
  ends = before.length[:, None] + jnp.arange(ngram)[None]
  places = ends[:, :, None] + jnp.arange(1 - ngram, 1)[None, None]
  grams = buffers.take_along(
      after.tokens, jnp.clip(places, 0, after.tokens.shape[1] - 1).reshape(
          len(ends), -1), axis=1)
  return grams.reshape(places.shape), (places[:, :, 0] >= 0) & (
      ends < (before.length + count)[:, None])


def _observe(last, from_text, by_one, context: Context, before: DecodeState,
             after: DecodeState, seen: Seen) -> DecodeState:
  del context
  window, pool = before.carry
  row = sampling.most_probable(seen.logits[:, last])
  rows = jnp.concatenate([seen.pending, row[:, None]], axis=1)
  runs, (_, height, width) = seen.count > 0, window.shape
  # Until each row is made of the one before, its columns are no text.
  ready = jnp.broadcast_to((runs & (before.step + 1 >= height))[:, None],
                           row.shape)
  pool = jax.vmap(_pooled)(pool, rows.swapaxes(1, 2), ready)
  if from_text:
    pool = jax.vmap(_pooled)(pool, *_committed(before, after, height + 1,
                                               seen.count))
  moved = rows[:, 1:]
  if not by_one:
    # Positions that were committed leave, and come again at the end.
    places = (jnp.arange(width)[None] + seen.count[:, None] - 1) % width
    moved = buffers.take_along(moved, places[:, None], axis=2)
  window = jnp.where(runs[:, None, None], moved, window)
  return after.replace(carry=(window, pool))
