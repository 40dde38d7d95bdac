"""Mamba-2 layers, as in Granite 4.0 H: see `recurrence` for states and trees.

Dao and Gu 2024, "Transformers are SSMs" (arXiv 2405.21060). With input x, time
step t > 0, and B and C, which the heads of a group share, a token changes the
state S' of the token before it to

    S = exp(-a t) S' + B (t x)^T        output S^T C + D x

so that B is the key and C the query of `recurrence`, and t x the change.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from models.transformer import parameters
from models.transformer import recurrence


class Mamba2(nn.Module):
  """A layer with a state instead of attention."""
  config: Any

  @nn.compact
  def __call__(self, x, states, updates, slot, view):
    """See `gated_delta.GatedDelta`."""
    cfg = self.config
    own = recurrence.project(self, x, states, updates, slot, view,
                             small=("decay",), bias=True)
    decay, steps = recurrence.time_steps(self, *own.small)
    y, updates = recurrence.scan(
        recurrence.Fresh(own.query, own.key, own.value * steps[..., None],
                         decay), states["state"], updates, slot, view.mask)
    skip = self._parameter("D", steps.shape[2] * steps.shape[3]).astype(
        jnp.float32).reshape(steps.shape[2:])
    y += skip[None, None, :, :, None] * own.value
    # Each group of heads is normalised.
    grouped = (*y.shape[:3], -1)
    y = y.reshape(grouped) * nn.silu(own.gate.astype(jnp.float32)).reshape(
        grouped)
    y *= jax.lax.rsqrt((y * y).mean(axis=-1, keepdims=True) + cfg.norm_eps)
    y = y.reshape(own.gate.shape).astype(x.dtype)
    y *= self._parameter("norm_scale", y.shape[-1])[None, None]
    return recurrence.linear(cfg)(
        cfg.dim, axes=(None, parameters.LINEAR), name="out")(y), {
            **updates, "inputs": own.inputs}

  def _parameter(self, name, size):
    return parameters.declare(self, name, nn.initializers.ones, (size,),
                              jnp.dtype(self.config.dtype),
                              (parameters.LINEAR,))
