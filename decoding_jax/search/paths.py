"""Texts that continue each other, as paths through the slots of one block.

All texts of a row share its committed prefix. A text is one row of a mask: the
slots that hold the keys of its tokens. Its newest token is in no slot yet, and
of an empty text that is the last token of the prompt:

    slot     0  1    2  3              two texts that grow by two tokens, in
    token    p  p    a  b              slots 0, 1 and 2, 3; p ends the prompt
    text a c attends to 0, 2           text b d attends to 1, 3
"""

from collections.abc import Callable, Sequence

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import buffers
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import token_buffer
from decoding_jax.types import (Array, Block, Cache, Context, DecodeState, NONE,
                                PAD, Stats)


@flax.struct.dataclass
class Paths:
  """W texts of each row, of at most L tokens after the prompt.

  Attributes:
    tokens: `[B, W, L]` int32, `PAD` after the end.
    log_probs: `[B, W, L]` float32, the target's own.
    lengths: `[B, W]` int32.
    mask: `[B, W, N]` bool, slots of all tokens but the newest one.
    alive: `[B, W]` bool, whether the text goes on.
  """
  tokens: Array
  log_probs: Array
  lengths: Array
  mask: Array
  alive: Array


@flax.struct.dataclass
class Grown:
  """What `grow` returns.

  Attributes:
    paths: the longer texts.
    block: with the keys of all tokens but the newest ones.
    logits: `[B, W, V]` float32, of the first forward; 0 where there was none.
    calls: `[B]` int32, forwards that some text of the row needed.
  """
  paths: Paths
  block: Block
  logits: Array
  calls: Array


def limit(context: Context, state: DecodeState) -> int:
  """Returns L, the most tokens after a prompt."""
  return state.tokens.shape[1] - context.prompts.shape[1]


def empty(batch: int, limit: int, slots: int) -> Paths:
  """Returns one empty text of each row.

  Args:
    batch: B.
    limit: L.
    slots: N.
  """
  return Paths(
      tokens=jnp.full((batch, 1, limit), PAD, jnp.int32),
      log_probs=jnp.zeros((batch, 1, limit), jnp.float32),
      lengths=jnp.zeros((batch, 1), jnp.int32),
      mask=jnp.zeros((batch, 1, slots), bool),
      alive=jnp.ones((batch, 1), bool))


def repeat(paths: Paths, width: int) -> Paths:
  """Returns `width` copies of the only text of each row."""
  return jax.tree.map(lambda x: jnp.repeat(x, width, axis=1), paths)


def ended(context: Context, paths: Paths):
  """Returns `[B, W]` bool, whether a text is as long as it can be."""
  last = _newest(paths, jnp.full((len(paths.lengths), 1), NONE, jnp.int32))
  return (token_buffer.ends(last, context.eos_id) & (paths.lengths > 0) |
          (paths.lengths == paths.tokens.shape[-1]))


def grow(context: Context, state: DecodeState, cache: Cache, block: Block,
         paths: Paths, *, steps: int, slot: Callable, choose: Callable,
         pause: Sequence[int] = ()) -> Grown:
  """Continues texts, one forward of W tokens a step.

  Args:
    context: holds target and end of text.
    state: holds the prompts.
    cache: of the prompts but for their last tokens.
    block: of N slots.
    paths: the texts; those that are not alive stay as they are.
    steps: tokens by which a text grows at most.
    slot: `i -> []`, the first of the W slots that step i writes.
    choose: `(i, logits [B, W, V]) -> [B, W]` int32, the next tokens.
    pause: tokens after which a text does not go on, though it has not ended.

  Returns:
    The longer texts, and the rest of `Grown`.
  """
  model, params = context.target, context.target_params
  batch, width = paths.lengths.shape
  places = jnp.arange(paths.mask.shape[-1])[None]
  prompt_end = token_buffer.newest(state, 1)
  pause = jnp.array(tuple(pause) or (NONE,), jnp.int32)

  def step(carry):
    i, grown = carry
    paths, at = grown.paths, slot(i)
    own = places == at + jnp.arange(width)[:, None]
    logits, block = model.forward(
        params, _newest(paths, prompt_end),
        cache.length[:, None] + paths.lengths, cache, grown.block, at,
        paths.mask | own[None])
    logits = logits.astype(jnp.float32)
    kept = paths.replace(mask=paths.mask | own[None] & paths.alive[..., None])
    return i + 1, Grown(
        append(context, kept, choose(i, logits), logits, pause), block,
        jnp.where(i == 0, logits, grown.logits),
        grown.calls + paths.alive.any(axis=1).astype(jnp.int32))

  none = jnp.zeros((batch, width, model.vocab_size), jnp.float32)
  _, grown = jax.lax.while_loop(
      lambda carry: (carry[0] < steps) & carry[1].paths.alive.any(), step,
      (jnp.int32(0), Grown(paths, block, none, jnp.zeros(batch, jnp.int32))))
  return grown


def next_log_probs(context: Context, logits):
  """Returns the distributions of the next tokens, `[B, W, V]` float32.

  At temperature 0 they are the model's own.
  """
  warper = context.warper
  warper = sampling.without_temperature(warper) if warper.greedy else warper
  return jax.vmap(sampling.log_probs)(warper, logits)


def greedy(context: Context, i, logits):
  """Returns the most probable tokens, `[B, W]` int32: a `choose` of `grow`."""
  del i
  return sampling.most_probable(next_log_probs(context, logits))


def where(rows, paths: Paths, others: Paths) -> Paths:
  """Returns the first texts in some rows `[B]` bool, else the others."""
  return jax.tree.map(lambda x, y: jnp.where(
      rows.reshape(-1, *[1] * (x.ndim - 1)), x, y), paths, others)


def take(paths: Paths, index) -> Paths:
  """Returns some of the texts of each row, `index [B, W']` int32."""
  return jax.tree.map(lambda x: jax.vmap(lambda x, i: x[i])(x, index), paths)


def rewards(context: Context, paths: Paths):
  """Returns the reward of each text, `[B, W]` float32."""
  valid = jnp.arange(paths.tokens.shape[-1])[None, None] < (
      paths.lengths[..., None])
  return text_reward.of_paths(context, text_reward.init(context),
                              jnp.maximum(paths.tokens, 0), valid)


def commit(state: DecodeState, paths: Paths, calls, extra) -> DecodeState:
  """Commits the only text of each row, with which all rows are done.

  Args:
    state: before the search.
    paths: one text of each row.
    calls: `[B]` int32, forwards of the target.
    extra: dict of further counts of a row.

  Returns:
    The state.
  """
  count = paths.lengths[:, 0]
  put = lambda buffer, x: token_buffer.append(buffer, state.length, x[:, 0],
                                              count)
  none = jnp.zeros_like(count)
  new = state.replace(
      tokens=put(state.tokens, paths.tokens),
      log_probs=put(state.log_probs, paths.log_probs),
      length=state.length + count,
      stats=Stats(calls, none, count, none, calls[:, None], extra))
  # Some rows may be done already.
  new = token_buffer.keep_done(state, new)
  return new.replace(step=state.step + 1, done=jnp.ones_like(state.done))


def _newest(paths: Paths, prompt_end):
  """Returns the last token of each text, `[B, W]` int32; else the prompt's."""
  last = jnp.maximum(paths.lengths - 1, 0)[..., None]
  found = buffers.take_along(paths.tokens, last, axis=-1)[..., 0]
  return jnp.where(paths.lengths > 0, found, prompt_end)


def append(context: Context, paths: Paths, tokens, logits,
           pause=(NONE,)) -> Paths:
  """Adds a token to each text that is alive.

  Args:
    context: holds the end of text.
    paths: the texts.
    tokens: `[B, W]` int32.
    logits: `[B, W, V]` float32 before the tokens.
    pause: `[...]` int32, tokens after which a text is not alive, as after its
      end.
  """
  alive, limit = paths.alive, paths.tokens.shape[-1]
  here = (jnp.arange(limit)[None, None] == paths.lengths[..., None]) & (
      alive[..., None])
  lengths = paths.lengths + alive.astype(jnp.int32)
  over = (token_buffer.ends(tokens, context.eos_id) | (lengths == limit) |
          token_buffer.ends(tokens, jnp.asarray(pause)))
  own = token_buffer.log_probs(logits, tokens)
  return paths.replace(
      tokens=jnp.where(here, tokens[..., None], paths.tokens),
      log_probs=jnp.where(here, own[..., None], paths.log_probs),
      lengths=lengths, alive=alive & ~over)
