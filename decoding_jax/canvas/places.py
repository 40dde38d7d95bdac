"""Positions of a canvas: what could be filled in, and which of them are."""

import functools

import jax
import jax.numpy as jnp

from decoding_jax import sampling
from decoding_jax.canvas.types import Context
from decoding_jax.kernels import random
from decoding_jax.types import NONE

# Confidences are multiples of this. Logits of float32 resolve no finer
# differences: the order of positions would depend on the shape of a batch.
_STEP = 2.0**-16


def candidates(context: Context, logits):
  """Returns the token `[B, D, L]` of each position, and its confidence.

  The noise of a position is the same at each step, so that a token is a
  function of the canvas, and a position whose distribution does not change
  keeps its token however long it waits: fresh noise in each step would let
  improbable tokens wait until they are drawn otherwise.
  """
  logits = logits.astype(jnp.float32)
  masks = jnp.arange(logits.shape[-1]) == context.model.mask_id
  logits = jnp.where(masks, -jnp.inf, logits)
  return jax.vmap(functools.partial(_of_row, context))(
      context.keys, context.warper, logits)


def _of_row(context, key, warper, logits):
  """The same of one row, `[D, L, V]`."""
  log_probs, shape = sampling.log_probs(warper, logits), logits.shape[1:]
  if not warper.greedy:
    noise = random.gumbel(key, shape[0] * shape[1]).reshape(1, *shape)
    log_probs += noise
  tokens = sampling.most_probable(log_probs)
  confidence = jax.vmap(context.confidence)(jax.nn.log_softmax(logits), tokens)
  return tokens, jnp.round(confidence / _STEP) * _STEP


def block_start(context: Context, canvas):
  """Returns the position `[...]` at which the current block begins.

  It is the block of the first masked position; L where the text is whole.
  """
  masked = is_open(context, canvas)
  start = jnp.argmax(masked, axis=-1) // context.block * context.block
  return jnp.where(masked.any(axis=-1), start, canvas.shape[-1]).astype(
      jnp.int32)


def is_open(context: Context, canvas):
  """Returns which positions `[..., L]` are still to be filled.

  Masked ones after the first end of text are not, if the positions before it
  are filled: they are ends of text, whatever the model says.
  """
  masked = canvas == context.model.mask_id
  open_before = jnp.cumsum(masked, axis=-1)
  ends = (canvas == context.eos_id) & (open_before == 0)
  return masked & ~ends.any(axis=-1, keepdims=True)


def advance(context: Context, canvas, tokens, confidence):
  """Lets the rule fill positions of one canvas `[L]` with `tokens [L]`."""
  opened, start = is_open(context, canvas), block_start(context, canvas)
  places = jnp.arange(len(canvas))
  eligible = opened & (places >= start) & (places < start + context.block)
  chosen = eligible & context.method.rule(context.method_params, confidence,
                                          eligible, start)
  canvas = jnp.where(chosen, tokens, canvas)
  if context.method.ends_text:
    after = jnp.cumsum(canvas == context.eos_id) > 0
    canvas = jnp.where(after & opened & ~chosen, context.eos_id, canvas)
  return canvas


def ended(context: Context, canvas):
  """Returns canvases with ends of text after the first one, and lengths."""
  length = canvas.shape[-1]
  is_end = canvas == context.eos_id
  first = jnp.where(is_end.any(axis=-1), jnp.argmax(is_end, axis=-1), length)
  after = jnp.arange(length)[None] > first[:, None]
  return (jnp.where(after & (context.eos_id != NONE), context.eos_id, canvas),
          jnp.minimum(first + 1, length).astype(jnp.int32))
