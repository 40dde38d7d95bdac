"""The reward of a `Context`, carried along by the texts of a search."""

import jax

from decoding_jax.rewards import text_reward
from decoding_jax.types import Context


def init(context: Context):
  """Returns the states of empty texts, a tree of `[B, 1, ...]`."""
  return jax.tree.map(lambda x: x[:, None], text_reward.init(context))


def advance(context: Context, states, tokens, valid):
  """Returns the states `[B, W, ...]` after `tokens [B, W]`, where `valid`."""
  return jax.vmap(lambda states, token, valid: text_reward.advance(
      context, states, token[:, None], valid[:, None]), in_axes=1, out_axes=1)(
          states, tokens, valid)


def value(context: Context, states):
  """Returns the value of each text, `[B, W]` float32."""
  return jax.vmap(lambda states: text_reward.value(context, states),
                  in_axes=1, out_axes=1)(states)
