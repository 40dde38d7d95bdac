"""ADED (arXiv 2407.12021): the most probable texts of a table of tri-grams.

A row keeps, of each pair of tokens, K tokens that came next, and their scores.
The tree grows best first, or by the paper's Monte Carlo tree search.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.runtime import token_buffer
from decoding_jax.speculation import best_first, monte_carlo, scoring
from decoding_jax.speculation import tree as tree_lib
from decoding_jax.types import Context, DecodeState, Drafter, NONE, Seen

# A tri-gram that occurs gains as much as in the paper at three tokens a call:
# 0.04 a call while it is within the last 16 tokens. No score exceeds 3.
_GAIN, _MOST, _GAIN_A_CALL = 0.2, 3.0, 0.04


@functools.lru_cache(maxsize=None)
def aded(nodes: int, depth: int, branching: int, buckets: int,
         simulations: int = 0, window: int = 0) -> Drafter:
  """Makes the drafter of `methods.aded`, with its arguments."""
  layout = tree_lib.free_layout(nodes, depth, branching)
  return Drafter(layout, functools.partial(_init, (buckets, branching)),
                 functools.partial(_propose, layout, simulations),
                 functools.partial(_observe, window), calls=0,
                 score=scoring.root_unless_drafted)


def bucket(first, second, buckets: int):
  """Returns the bucket of a pair of tokens; some pairs share one."""
  mixed = first.astype(jnp.uint32) * np.uint32(0x9E3779B1) + second.astype(
      jnp.uint32)
  return ((mixed ^ (mixed >> 15)) % np.uint32(buckets)).astype(jnp.int32)


def learn(table, tokens, count, begin=0, gain=_GAIN, most=_MOST):
  """Adds to the scores of tri-grams `begin` to `count` of `[T]`, in one row. A
  pair of which K tokens are known forgets the one of least score."""
  def note(i, table):
    following, scores = table
    at = bucket(tokens[i], tokens[i + 1], len(scores))
    same = following[at] == tokens[i + 2]
    slot = jnp.where(same.any(), jnp.argmax(same), jnp.argmin(scores[at]))
    score = jnp.where(same.any(), scores[at, slot], 0) + gain
    inside = (begin <= i) & (i < count)
    at = jnp.where(inside, at, len(scores))  # Beyond it: not written.
    return (following.at[at, slot].set(tokens[i + 2], mode="drop"),
            scores.at[at, slot].set(jnp.minimum(score, most), mode="drop"))

  return jax.lax.fori_loop(0, len(tokens) - 2, note, table)


def _init(shape, context: Context, state: DecodeState) -> DecodeState:
  start = jax.tree.leaves(context.draft_params) or [
      np.full(shape, NONE), np.zeros(shape)]
  if [*map(jnp.shape, start)] != [shape] * 2:
    raise ValueError(f"draft_params have shapes {[*map(jnp.shape, start)]}: "
                     f"two of [buckets, branching]={shape} are needed.")
  start[0] = token_buffer.known(start[0], context.target.vocab_size)
  start[1] = jnp.where(start[0] == NONE, 0, start[1])
  table = tuple(jnp.broadcast_to(jnp.asarray(x, dtype), (
      len(state.length), *shape)) for x, dtype in zip(start, (
          jnp.int32, jnp.float32)))
  return state.replace(carry=jax.vmap(learn)(
      table, context.prompts, context.prompt_lengths - 2))


def _propose(layout, simulations, keys, context: Context, state: DecodeState):
  def of_row(key, table, last):
    def successors(pair):
      tokens, scores = (x[bucket(*pair, len(x))] for x in table)
      pairs = jnp.stack([jnp.full_like(tokens, pair[1]), tokens], axis=1)
      return jnp.maximum(tokens, 0), scores, pairs

    def shares(pair):
      tokens, scores, pairs = successors(pair)
      return tokens, scores / jnp.maximum(scores.sum(), 1e-30), pairs

    if simulations:
      return monte_carlo.expand(key, layout, simulations, last, successors)
    return best_first.expand(layout, last, shares)

  del context
  last = token_buffer.newest(state, 2)
  nodes = jax.vmap(of_row)(keys, state.carry, last)
  return best_first.with_root(last[:, 1], *nodes), None


def _observe(window, context: Context, before: DecodeState, after: DecodeState,
             seen: Seen) -> DecodeState:
  del context
  if window:
    recent = functools.partial(learn, gain=_GAIN_A_CALL)
    return after.replace(carry=jax.vmap(recent)(
        before.carry, token_buffer.newest(after, window),
        jnp.where(seen.count > 0, window - 2, 0),
        jnp.maximum(window - after.length, 0)))
  text = jnp.concatenate([token_buffer.newest(before, 2), seen.tokens], axis=1)
  return after.replace(carry=jax.vmap(learn)(before.carry, text, seen.count))
