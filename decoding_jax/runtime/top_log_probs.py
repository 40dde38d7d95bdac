"""The most probable tokens at each position, beside the one that is written."""

import functools

import jax.numpy as jnp

from decoding_jax import kernels, sampling
from decoding_jax.kernels import buffers
from decoding_jax.runtime import token_buffer
from decoding_jax.types import Context, Decoder, DecodeState, PAD


@functools.lru_cache(maxsize=None)
def recorded(decoder: Decoder, count: int) -> Decoder:
  """Returns a decoder of trees that also sets `DecodeState.top`, K = count."""
  def init(context: Context, state: DecodeState):
    shape = *state.tokens.shape, count
    return decoder.init(context, state.replace(top=(
        jnp.full(shape, PAD, jnp.int32), jnp.zeros(shape, jnp.float32))))

  def step_with_tree(context: Context, state: DecodeState):
    after, seen = decoder.step_with_tree(context, state)
    logits = buffers.take_along(
        seen.logits, seen.verdict.path[:, :, None], axis=1).astype(jnp.float32)
    best, tokens = sampling.top_k(logits, count)
    largest, log_mass = kernels.log_normalizer(logits)
    put = lambda buffer, x: token_buffer.append(buffer, state.length, x,
                                                seen.count)
    top = put(state.top[0], tokens), put(state.top[1],
                                         best - largest - log_mass)
    return after.replace(top=top), seen

  return decoder._replace(
      init=init, step_with_tree=step_with_tree,
      step=lambda context, state: step_with_tree(context, state)[0])
