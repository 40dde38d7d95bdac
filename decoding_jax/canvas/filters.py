"""Filters of Learn2PD: which tokens of a block are final."""

import jax
import jax.numpy as jnp


def inputs(confidence, masked):
  """Returns what a filter reads `[..., S]`: 1 where a position is filled."""
  return jnp.where(masked, confidence, 1.0)


def init(key, block: int, hidden: int = 32):
  """Returns random parameters of a filter for blocks of S positions.

  A dict of `first [hidden, S]`, `out [S, hidden]`, and their biases.
  """
  keys = jax.random.split(key)
  draw = lambda key, *shape: jax.random.normal(key, shape) * shape[1]**-0.5
  return {"first": draw(keys[0], hidden, block),
          "first_bias": jnp.zeros(hidden),
          "out": draw(keys[1], block, hidden), "out_bias": jnp.zeros(block)}


def logits(params, confidence):
  """Returns logits that a token is final `[..., S]`, of confidences alike."""
  bias = lambda name: jnp.expand_dims(params[name], range(confidence.ndim - 1))
  hidden = jax.nn.relu(confidence @ params["first"].T + bias("first_bias"))
  return hidden @ params["out"].T + bias("out_bias")
