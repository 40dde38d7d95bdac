"""Trains the filter of Learn2PD (arXiv 2509.25188) on traces of decoding."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from decoding_jax import canvas
from decoding_jax.types import NONE


class Traces(NamedTuple):
  """Blocks of positions, one of each forward."""
  # `[R, S]` float32, 1 where a position was filled already.
  confidence: np.ndarray
  final: np.ndarray  # `[R, S]` bool, whether the model's token is the last one
  masked: np.ndarray  # `[R, S]` bool, where there was something to decide


def traces(filled, block: int) -> Traces:
  """Cuts the current block of S positions of each forward out of a `Filled`."""
  confidence, tokens = filled.trace
  rows, features = np.arange(len(filled.tokens)), []
  for i in range(confidence.shape[1]):
    # Open before this forward: filled by it or later.
    masked = filled.filled_at >= i
    running = rows[masked.any(axis=1)]
    if not len(running):
      break
    start = masked[running].argmax(axis=1) // block * block
    at = (running[:, None], start[:, None] + np.arange(block)[None])
    features.append(Traces(
        np.where(masked[at], confidence[:, i][at], 1.0).astype(np.float32),
        tokens[:, i][at] == filled.tokens[at],
        masked[at] & (filled.filled_at[at] != NONE)))
  return Traces(*map(np.concatenate, zip(*features)))


def of_decoder(config, decode, batches):
  """Returns the parameters of a filter, trained on traces of a decoder."""
  data = [traces(jax.device_get(decode(*batch)), config.block)
          for batch in batches]
  params, losses = train(jax.random.key(config.seed),
                         Traces(*map(np.concatenate, zip(*data))),
                         config.filter_steps)
  print(f"filter of Learn2PD: cross entropy {losses[0]:.4f} at first, "
        f"{losses[-1]:.4f} after {config.filter_steps} steps")
  return params


@functools.partial(jax.jit, static_argnums=(2, 3))
def train(key, data: Traces, steps: int, rate: float = 3e-3):
  """Returns trained parameters of `canvas.filters`, and losses `[steps]`."""
  optimizer = optax.adamw(rate)
  params = canvas.filters.init(key, data.confidence.shape[1])

  def loss(params):
    losses = optax.sigmoid_binary_cross_entropy(
        canvas.filters.logits(params, data.confidence),
        data.final.astype(jnp.float32))
    return jnp.average(losses, weights=data.masked.astype(jnp.float32))

  def step(carry, _):
    params, state = carry
    value, grads = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(grads, state, params)
    return (optax.apply_updates(params, updates), state), value

  (params, _), values = jax.lax.scan(step, (params, optimizer.init(params)),
                                     length=steps)
  return params, values
