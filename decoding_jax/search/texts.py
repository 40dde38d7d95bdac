"""The texts of a search: W beams, samples or particles of each row.

The texts of a row are a tree whose nodes are slots of one block: they share
the committed prefix, and no cache is copied when texts are reordered. Node w of
level i is slot `i * W + w`, and the past of a text is one row of the mask:

    slot     0  1    2  3    4  5        W = 2 texts, 3 levels
    parent   -  -    1  1    2  3        slot 4 attends to 1, 2 and itself
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.kernels import buffers, random
from decoding_jax.runtime import cache as cache_lib, token_buffer
from decoding_jax.search import beam as beam_lib
from decoding_jax.types import Array, Block, Context, PAD


@flax.struct.dataclass
class Texts:
  """The texts of each row.

  Attributes:
    tokens: `[B, W, L]` int32, `PAD` after the end.
    lengths: `[B, W]` int32.
    alive: `[B, W]` bool, whether the text goes on.
    beam: a `beam.Beam` of `[B, W]`.
    log_probs: `[B, W, L]` float32, the target's own, of each token.
    mask: `[B, W, N]` bool, the slots of each text's tokens.
    block: at least W * max(L - 1, 1) slots; the last level needs no forward.
    state: what the rules of a search carry of each text, a tree of
      `[B, W, ...]`.
    counts: what they count of each row, a dict of `[B]`.
  """
  tokens: Array
  lengths: Array
  alive: Array
  beam: beam_lib.Beam
  log_probs: Array
  mask: Array
  block: Block
  state: Any
  counts: dict[str, Array]


def empty(cache, batch, limit, slots, state, counts) -> Texts:
  """Returns empty texts, one a row, in arrays for whole texts.

  Args:
    cache: of the model that continues them.
    batch: B.
    limit: L, the most tokens of a text.
    slots: N.
    state: a tree of `[B, 1, ...]`.
    counts: a dict of `[B]`.
  """
  return Texts(
      tokens=jnp.full((batch, 1, limit), PAD, jnp.int32),
      lengths=jnp.zeros((batch, 1), jnp.int32),
      alive=jnp.ones((batch, 1), bool),
      beam=jax.tree.map(lambda x: jnp.broadcast_to(x, (batch, 1)),
                        beam_lib.root()),
      log_probs=jnp.zeros((batch, 1, limit), jnp.float32),
      mask=jnp.zeros((batch, 1, slots), bool),
      block=cache_lib.init_block(cache, slots), state=state, counts=counts)


def take(texts: Texts, parents) -> Texts:
  """Returns those of the texts that are asked for, any of them repeatedly.

  Args:
    texts: W of each row.
    parents: `[B, W']` int32, which ones.

  Returns:
    W' of each row; they share the block.
  """
  own = texts.replace(block=None, counts={})
  taken = jax.tree.map(lambda x: jax.vmap(lambda x, i: x[i])(x, parents), own)
  return taken.replace(block=texts.block, counts=texts.counts)


def first(texts: Texts, width: int) -> Texts:
  """Returns the first texts of each row, without their block and counts."""
  own = texts.replace(block=None, counts={})
  return jax.tree.map(lambda x: x[:, :width], own)


def newest(texts: Texts):
  """Returns the last token of each text: `[B, W]` int32, 0 of empty ones."""
  last = jnp.maximum(texts.lengths - 1, 0)[..., None]
  return jnp.maximum(buffers.take_along(texts.tokens, last, axis=-1)[..., 0],
                     0)


def ended(context: Context, texts: Texts):
  """Returns `[B, W]` bool, whether a text has ended by itself."""
  return token_buffer.ends(newest(texts), context.eos_id) & (texts.lengths > 0)


def next_log_probs(context: Context, warper, logits, alive):
  """Returns the distribution of the next token of each text.

  A text that has ended repeats its end with probability 1, which leaves its
  log-probability unchanged.

  Args:
    context: holds the end of text.
    warper: of the model; at temperature 0 its own distribution is searched.
    logits: `[B, W, V]`.
    alive: `[B, W]` bool.

  Returns:
    `[B, W, V]` float32.
  """
  warper = sampling.without_temperature(warper) if warper.greedy else warper
  log_probs = jax.vmap(sampling.log_probs)(warper, logits)
  end = jnp.arange(log_probs.shape[-1]) == jnp.maximum(context.eos_id[0], 0)
  return jnp.where(alive[..., None], log_probs,
                   jnp.where(end, 0., -jnp.inf)[None, None])


def grow(expand, width, context: Context, keys, i, logits,
         texts: Texts) -> Texts:
  """Extends the texts to level i.

  Args:
    expand: of a `level_search.Level`.
    width: W, of the new level; texts after these have ended.
    context: holds warper and end of text.
    keys: `[B]` random keys, folded by `i`.
    i: `[B]` int32, the level of each row.
    logits: `[B, W', V]` after the texts.
    texts: W' of each row, and what have ended.

  Returns:
    W texts of each row, and what have ended.
  """
  log_probs = next_log_probs(context, context.warper, logits,
                             texts.alive[:, :logits.shape[1]])
  keys = jax.vmap(random.fold_in)(keys, i)
  tokens, parents, beam, counts = expand(keys, context, log_probs, texts, width)
  own_log_probs = token_buffer.log_probs(
      jax.vmap(lambda x, i: x[i])(logits, parents), tokens)
  new = take(texts, parents)
  here = jnp.arange(new.tokens.shape[-1])[None, None] == i[:, None, None]
  put = lambda buffer, x: jnp.where(here, x[..., None], buffer)
  # Slots of ended texts are those of others, and nothing attends to them.
  own = (i * width)[:, None, None] + jnp.arange(tokens.shape[1])[None, :, None]
  return new.replace(
      tokens=put(new.tokens, jnp.where(new.alive, tokens, PAD)),
      lengths=new.lengths + new.alive.astype(jnp.int32),
      # A text of probability 0 only fills up W.
      alive=(new.alive & ~token_buffer.ends(tokens, context.eos_id) &
             (beam.log_probs > -jnp.inf)),
      beam=beam,
      log_probs=put(new.log_probs, jnp.where(new.alive, own_log_probs, 0.)),
      mask=new.mask | (jnp.arange(new.mask.shape[-1])[None, None] == own),
      counts=counts)
