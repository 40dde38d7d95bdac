"""Greedy roll-outs of several texts of each row at once.

All paths of a row are slots of one block and share its committed prefix, which
is only read; slot `j * K + c` holds token j of path c:

    slot    0  1    2  3    4  5        K = 2 paths, 3 steps
    path    0  1    0  1    0  1        slot 4 attends to 0, 2 and itself
"""

from typing import Callable, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.types import (Array, Block, Cache, Context, DecodeState,
                                LanguageModel, Params)


@flax.struct.dataclass
class Rollout:
  """Greedy continuations; K paths a row, n steps."""
  tokens: Array  # `[B, K, 1 + n]` int32, the first one given
  valid: Array  # `[B, K, 1 + n]` bool; False after the end of the text
  # `[B, K, 1 + n]` float32, the model's own; 0 for the first one
  log_probs: Array
  logits: Array  # `[B, K, V]` float32 after the first token
  block: Block  # `n * K` slots
  calls: Array  # `[B]` int32, forwards that some path of the row needed


class RolloutModel(NamedTuple):
  """Which model rolls out."""
  name: str  # In the name of a method
  # `(context, target_cache, draft_cache) -> (model, params, cache)`
  pick: Callable[..., tuple[LanguageModel, Params, Cache]]
  needs_draft: bool  # Whether that is the draft model


ROLLERS = {
    "target": RolloutModel("target", lambda context, cache, _: (
        context.target, context.target_params, cache), needs_draft=False),
    "draft": RolloutModel("draft", lambda context, _, cache: (
        context.draft, context.draft_params, cache), needs_draft=True)}


def allowed(context: Context, logits):
  """`[B, ..., V]` float32 logits, -inf for tokens that may not occur."""
  logits, mask = logits.astype(jnp.float32), context.warper.token_mask
  if mask is None:
    return logits
  middle = (1,) * (logits.ndim - 2)
  return jnp.where(mask.reshape(len(mask), *middle, -1), logits, -jnp.inf)


def best(context: Context, logits):
  """`[B, ...]` int32, the most probable token that may occur."""
  return sampling.most_probable(allowed(context, logits))


def extend(model: LanguageModel, params: Params, cache: Cache, tokens, count):
  """Runs a model on the tokens `[B, T]` after a cache, and commits them.

  Returns logits `[B, T, V]` float32, and the cache; all T tokens are in it, of
  which `count`, `[B]` or one number, count: the others are after its length.
  """
  order = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
  logits, block = model.forward(
      params, tokens, cache.length[:, None] + order, cache,
      cache_lib.init_block(cache, tokens.shape[1]), 0,
      order[:, :, None] >= order[:, None])
  cache = cache_lib.commit(cache, block,
                           cache_lib.await_logits(order, logits), count)
  return logits.astype(jnp.float32), cache


def catch_up(width, context: Context, state: DecodeState, count):
  """Runs the draft on tokens that its cache lacks, and commits `count [B]`.

  Returns logits `[B, width, V]` and the draft cache; `width` is static.
  """
  columns = state.draft_cache.length[:, None] + jnp.arange(width)[None]
  newest = buffers.take_along(
      state.tokens, jnp.minimum(columns, state.length[:, None] - 1), axis=1)
  return extend(context.draft, context.draft_params, state.draft_cache, newest,
                count)


def roll_out(context: Context, roller, firsts, room, steps: int) -> Rollout:
  """Continues K texts a row greedily, one forward of K tokens a step, until the
  last path ends. `roller` is (model, params, cache), the cache holding all
  committed tokens; `firsts [B, K]` int32 begin the paths; `room [B]` bounds
  their tokens, the first included, by at most 1 + `steps`. A row without room
  needs no forward."""
  model, params, cache = roller
  num_paths, room = firsts.shape[1], room[:, None]
  slots = jnp.arange(steps * num_paths)[None]
  own = slots % num_paths == jnp.arange(num_paths)[:, None]
  blank = jnp.zeros((*firsts.shape, 1 + steps), jnp.float32)
  out = Rollout(
      tokens=blank.astype(jnp.int32).at[:, :, 0].set(firsts),
      valid=(blank > 0).at[:, :, 0].set(room > 0), log_probs=blank,
      logits=jnp.zeros((*firsts.shape, model.vocab_size), jnp.float32),
      block=cache_lib.init_block(cache, slots.size),
      calls=jnp.zeros(len(firsts), jnp.int32))

  def step(carry):
    i, alive, out = carry
    mask = jnp.broadcast_to(own & (slots // num_paths <= i),
                            (*firsts.shape, slots.size))
    positions = jnp.broadcast_to(cache.length[:, None] + i, firsts.shape)
    logits, block = model.forward(params, out.tokens[:, :, i], positions,
                                  cache, out.block, i * num_paths, mask)
    tokens = best(context, logits)
    put = lambda buffer, x: buffer.at[:, :, i + 1].set(x)
    out = Rollout(
        put(out.tokens, tokens), put(out.valid, alive),
        put(out.log_probs, token_buffer.log_probs(logits, tokens)),
        jnp.where(i == 0, logits.astype(jnp.float32), out.logits), block,
        out.calls + alive.any(axis=1).astype(jnp.int32))
    return i + 1, token_buffer.go_on(context, alive, tokens, room - i - 2), out

  alive = token_buffer.go_on(context, jnp.ones_like(firsts, bool), firsts,
                             room - 1)
  _, _, out = jax.lax.while_loop(lambda carry: carry[1].any(), step,
                                 (jnp.int32(0), alive, out))
  return out
