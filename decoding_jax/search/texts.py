"""The texts of a search: W beams, samples or partial texts of each row.

Texts of a row share its committed prefix and the slots of one block: reordering
copies no cache. A text's past is a mask over slots. Of W beams, node w of level
i is slot `i * W + w`:

    slot     0  1    2  3    4  5        W = 2 texts, 3 levels
    parent   -  -    1  1    2  3        slot 4 attends to 1, 2 and itself

`grow` extends texts by a level after a forward; `extend` by their own tokens,
where the newest token (of an empty text, the prompt's last) is in no slot yet.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import beam as beam_lib, sampling
from decoding_jax.kernels import buffers, random
from decoding_jax.rewards import text_reward
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.types import (Array, Block, Cache, Context, DecodeState, NONE,
                                PAD, Stats)


@flax.struct.dataclass
class Texts:
  """W texts of each row, of at most L tokens after the prompt."""
  tokens: Array  # `[B, W, L]` int32, `PAD` after the end
  log_probs: Array  # `[B, W, L]` float32, the target's own, of each token
  lengths: Array  # `[B, W]` int32
  mask: Array  # `[B, W, N]` bool, the slots of each text's tokens
  alive: Array  # `[B, W]` bool, whether the text goes on
  # Of a search by levels, a `beam.Beam` of `[B, W]`.
  beam: beam_lib.Beam | None = None
  # Of a search by levels, at least W * max(L - 1, 1) slots; the last level
  # needs no forward.
  block: Block | None = None
  # What the rules of a search carry of each text, a tree of `[B, W, ...]`.
  state: Any = ()
  # What they count of each row, a dict of `[B]`.
  counts: dict[str, Array] = dataclasses.field(default_factory=dict)


@flax.struct.dataclass
class Extended:
  """The result of `extend`."""
  texts: Texts  # the longer texts
  block: Block  # with the keys of all tokens but the newest ones
  # `[B, W, V]` float32, of the first forward; 0 where there was none.
  logits: Array
  calls: Array  # `[B]` int32, forwards that some text of the row needed


def limit(context: Context, state: DecodeState) -> int:
  """Returns L, the most tokens after a prompt."""
  return state.tokens.shape[1] - context.prompts.shape[1]


def empty(batch: int, limit: int, slots: int) -> Texts:
  """Returns one empty text of each row, of L tokens and N slots at most."""
  return Texts(
      tokens=jnp.full((batch, 1, limit), PAD, jnp.int32),
      log_probs=jnp.zeros((batch, 1, limit), jnp.float32),
      lengths=jnp.zeros((batch, 1), jnp.int32),
      mask=jnp.zeros((batch, 1, slots), bool),
      alive=jnp.ones((batch, 1), bool))


def begin(cache: Cache, batch: int, limit: int, slots: int, state,
          counts) -> Texts:
  """Returns the same for a search by levels, with `counts` a row."""
  return empty(batch, limit, slots).replace(
      beam=jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, 1)),
                        beam_lib.root()),
      block=cache_lib.init_block(cache, slots), state=state, counts=counts)


def pick(x, index):
  """Returns `x[b, index[b]]` of each row b."""
  return jax.vmap(lambda x, i: x[i])(x, index)


def repeat(texts: Texts, width: int) -> Texts:
  """Returns `width` copies of each text, grouped by text."""
  return _each(lambda x: jnp.repeat(x, width, axis=1), texts)


def take(texts: Texts, index) -> Texts:
  """Returns texts `index [B, W']`, repeatedly if asked; one block for all."""
  return _each(lambda x: pick(x, index), texts)


def first(texts: Texts, width: int) -> Texts:
  """Returns the first texts of each row, without their block and counts."""
  return _each(lambda x: x[:, :width], texts).replace(block=None, counts={})


def _each(function, texts: Texts) -> Texts:
  """Applies a function to all that is `[B, W, ...]`."""
  own = texts.replace(block=None, counts={})
  return jax.tree.map(function, own).replace(block=texts.block,
                                             counts=texts.counts)


def where(rows, texts: Texts, others: Texts) -> Texts:
  """Returns the first texts in some rows `[B]` bool, else the others."""
  return jax.tree.map(lambda x, y: jnp.where(
      rows.reshape(-1, *[1] * (x.ndim - 1)), x, y), texts, others)


def newest(texts: Texts, otherwise=0):
  """Returns the last token of each text, `[B, W]`; of empty `otherwise`."""
  last = jnp.maximum(texts.lengths - 1, 0)[..., None]
  tokens = buffers.take_along(texts.tokens, last, axis=-1)[..., 0]
  return jnp.where(texts.lengths > 0, tokens, otherwise)


def ended(context: Context, texts: Texts):
  """Returns `[B, W]` bool, whether a text has ended by itself."""
  return token_buffer.ends(newest(texts), context.eos_id) & (texts.lengths > 0)


def complete(context: Context, texts: Texts):
  """Returns `[B, W]` bool, whether a text has ended or is as long as it may."""
  return ended(context, texts) | (texts.lengths == texts.tokens.shape[-1])


def rewards(context: Context, texts: Texts):
  """Returns the reward of each text, `[B, W]` float32."""
  valid = jnp.arange(texts.tokens.shape[-1])[None, None] < (
      texts.lengths[..., None])
  return text_reward.of_paths(context, text_reward.init(context),
                              jnp.maximum(texts.tokens, 0), valid)


def next_log_probs(warper, logits):
  """Returns the warped log-probabilities `[B, W, V]`, at T = 0 unwarped."""
  warper = sampling.without_temperature(warper) if warper.greedy else warper
  return jax.vmap(sampling.log_probs)(warper, logits)


def continued_log_probs(context: Context, warper, logits, alive):
  """Returns the same, where texts that are not `alive [B, W]` have ended. These
  repeat their end with probability 1, which leaves their log-probability
  unchanged."""
  log_probs = next_log_probs(warper, logits)
  end = jnp.arange(log_probs.shape[-1]) == jnp.maximum(context.eos_id[0], 0)
  return jnp.where(alive[..., None], log_probs,
                   jnp.where(end, 0., -jnp.inf)[None, None])


def greedy(context: Context, i, logits):
  """Returns the most probable tokens, `[B, W]` int32: a `choose` of `extend`.
  """
  del i
  return sampling.most_probable(next_log_probs(context.warper, logits))


def extend(context: Context, state: DecodeState, cache: Cache, block: Block,
           texts: Texts, *, steps: int, slot: Callable, choose: Callable,
           pause: Sequence[int] = (), most=None) -> Extended:
  """Continues texts, one forward of W tokens a step, by `steps` tokens or `most
  [B]`. Texts that are not alive stay unchanged. `cache` holds the prompts
  without their last tokens, and step i writes W slots of `block` from `slot(i)`
  on. `choose(i, logits [B, W, V])` returns the next tokens `[B, W]`. A text
  stops after a token of `pause`, though it has not ended."""
  model, params = context.target, context.target_params
  batch, width = texts.lengths.shape
  places = jnp.arange(texts.mask.shape[-1])[None]
  prompt_end = token_buffer.newest(state, 1)
  pause = jnp.array(tuple(pause) or (NONE,), jnp.int32)

  def step(carry):
    i, grown = carry
    texts, at = grown.texts, slot(i)
    own = places == at + jnp.arange(width)[:, None]
    logits, block = model.forward(
        params, newest(texts, prompt_end),
        cache.length[:, None] + texts.lengths, cache, grown.block, at,
        texts.mask | own[None])
    logits = logits.astype(jnp.float32)
    kept = texts.replace(mask=texts.mask | own[None] & texts.alive[..., None])
    texts = append(context, kept, choose(i, logits), logits, pause)
    if most is not None:
      texts = texts.replace(alive=texts.alive & (i + 1 < most)[:, None])
    return i + 1, Extended(
        texts, block,
        jnp.where(i == 0, logits, grown.logits),
        grown.calls + grown.texts.alive.any(axis=1).astype(jnp.int32))

  none = jnp.zeros((batch, width, model.vocab_size), jnp.float32)
  _, grown = jax.lax.while_loop(
      lambda carry: (carry[0] < steps) & carry[1].texts.alive.any(), step,
      (jnp.int32(0), Extended(texts, block, none, jnp.zeros(batch, jnp.int32))))
  return grown


def append(context: Context, texts: Texts, tokens, logits,
           pause=None) -> Texts:
  """Adds `tokens [B, W]` to texts that are alive, which `pause` may end."""
  new = _put(texts, tokens, token_buffer.log_probs(logits, tokens))
  return new.replace(alive=token_buffer.go_on(
      context, texts.alive, tokens, texts.tokens.shape[-1] - new.lengths,
      pause))


def grow(expand, width, context: Context, keys, i, logits,
         texts: Texts) -> Texts:
  """Extends the texts to level i, by `expand` of a `level_search.Level`. `keys
  [B]` are folded by `i [B]`, the length of texts that are alive; `logits [B,
  W', V]` are after the texts. Texts after the first `width` have ended."""
  log_probs = continued_log_probs(context, context.warper, logits,
                                  texts.alive[:, :logits.shape[1]])
  keys = jax.vmap(random.fold_in)(keys, i)
  tokens, parents, beam, counts = expand(keys, context, log_probs, texts, width)
  own_log_probs = token_buffer.log_probs(pick(logits, parents), tokens)
  new = take(texts, parents)
  # Ended texts share slots with others, and nothing attends to them.
  own = (i * width)[:, None, None] + jnp.arange(tokens.shape[1])[None, :, None]
  return _put(new, tokens, own_log_probs).replace(
      # A text of probability 0 only fills up W.
      alive=(token_buffer.go_on(context, new.alive, tokens) &
             (beam.log_probs > -jnp.inf)),
      beam=beam, counts=counts,
      mask=new.mask | (jnp.arange(new.mask.shape[-1])[None, None] == own))


def reseat(texts: Texts, slot) -> Texts:
  """Gives the newest tokens of texts that were reordered slots of their own. A
  forward writes the token of text w to the w-th slot of a level, wherever the
  text was when `grow` extended it. `slot` is the first of the level."""
  width, slots = texts.mask.shape[1:]
  offset = jnp.arange(slots)[None, None] - slot
  return texts.replace(mask=jnp.where(
      (offset >= 0) & (offset < width),
      offset == jnp.arange(width)[None, :, None], texts.mask))


def _put(texts: Texts, tokens, log_probs) -> Texts:
  """Writes a token to the end of each text that is alive."""
  here = (jnp.arange(texts.tokens.shape[-1])[None, None] ==
          texts.lengths[..., None]) & texts.alive[..., None]
  put = lambda buffer, x: jnp.where(here, x[..., None], buffer)
  return texts.replace(
      tokens=put(texts.tokens, tokens),
      log_probs=put(texts.log_probs, log_probs),
      lengths=texts.lengths + texts.alive.astype(jnp.int32))


def no_stats(state: DecodeState, extra, depth: int = 0) -> DecodeState:
  """Returns the state with counts of 0, and further ones as in `extra`."""
  return state.replace(stats=Stats.zeros(len(state.length), depth).replace(
      extra=extra))


def commit(state: DecodeState, texts: Texts, extra, *, target_calls,
           **counts) -> DecodeState:
  """Commits the first text of each row, with which all rows are done."""
  count = texts.lengths[:, 0]
  put = lambda buffer, x: token_buffer.append(buffer, state.length, x[:, 0],
                                              count)
  new = state.replace(
      tokens=put(state.tokens, texts.tokens),
      log_probs=put(state.log_probs, texts.log_probs),
      length=state.length + count,
      stats=state.stats.replace(**{
          "accepted_by_depth": target_calls[:, None], **counts},
          target_calls=target_calls, emitted=count, extra=extra))
  # Some rows may be done already.
  new = token_buffer.keep_done(state, new)
  return new.replace(step=state.step + 1, done=jnp.ones_like(state.done))
