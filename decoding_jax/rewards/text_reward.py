"""The reward of a `Context`, for all rows at once."""

import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.types import Context


def init(context: Context):
  """Returns the state of each row after its prompt, a tree of `[B, ...]`."""
  reward = context.reward
  return jax.vmap(reward.init, (None, 0, 0, 0))(
      context.reward_params, context.constraints, context.prompts,
      context.prompt_lengths)


def advance(context: Context, states, tokens, valid):
  """Returns the states after more `tokens [B, T]`, where `valid [B, T]`."""
  new = jax.vmap(context.reward.advance, (None, 0, 0, 0, 0))(
      context.reward_params, context.constraints, states, tokens, valid)
  if _types(new) != _types(states):
    raise ValueError(f"Reward.advance returned a state of {_types(new)}: that "
                     f"of Reward.init, {_types(states)}, is needed.")
  return new


def value(context: Context, states):
  """Returns the value of each state, `[B]` float32."""
  values = jax.vmap(context.reward.value, (None, 0, 0))(
      context.reward_params, context.constraints, states)
  if values.ndim != 1:
    raise ValueError(f"Reward.value returned an array of shape "
                     f"{values.shape[1:]}: a single number is needed.")
  return values.astype(jnp.float32)


def _types(states):
  """Returns types and shapes of the state of a row, for messages."""
  return jax.tree.map(lambda x: f"{x.dtype}{list(x.shape[1:])}", states)


def value_after(context: Context, states, tokens, count):
  """Returns the value `[B]` after the first `count [B]` tokens."""
  valid = jnp.arange(tokens.shape[1])[None] < count[:, None]
  return value(context, advance(context, states, tokens, valid))


def tokens_until_gain(context: Context, states, before, tokens, count):
  """Returns how many tokens it takes to reach the last value, if it rises.

  It is in 1..count; `count` where the last value does not exceed `before`.
  """
  def step(states, x):
    states = advance(context, states, *(y[:, None] for y in x))
    return states, value(context, states)

  valid = jnp.arange(tokens.shape[1])[None] < count[:, None]
  _, values = jax.lax.scan(step, states, (tokens.T, valid.T))
  first = 1 + jnp.argmax(values >= values[-1:], axis=0)
  return jnp.where(values[-1] > before, first, count).astype(jnp.int32)


def of_paths(context: Context, states, tokens, valid):
  """Returns the values `[B, K]` of continuations `tokens [B, K, T]`."""
  def of_one(tokens, valid):
    return value(context, advance(context, states, tokens, valid))

  return jax.vmap(of_one, in_axes=1, out_axes=1)(tokens, valid)


def value_of_text(context: Context, tokens, lengths):
  """Returns the value `[B]` of whole texts, which begin with the prompts."""
  new = tokens.shape[1] - context.prompts.shape[1]
  columns = context.prompt_lengths[:, None] + jnp.arange(new)[None]
  after = buffers.take_along(tokens, columns, axis=1)
  states = advance(context, init(context), jnp.maximum(after, 0),
                   columns < lengths[:, None])
  return value(context, states)
