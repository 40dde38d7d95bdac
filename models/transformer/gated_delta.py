"""Gated delta layers, as in Qwen3-Next: see `recurrence` for states and trees.

Yang et al. 2024, "Gated Delta Networks" (arXiv 2412.06464). With key k, value v
and rate b, a token changes its predecessor's state S' by

    d = b (v - exp(g) S'^T k)       S = exp(g) S' + k d^T

so the changes of all nodes solve one triangular system, with the tree's mask
instead of the causal one (section 3.3).
"""

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from models.transformer import layers
from models.transformer import parameters
from models.transformer import recurrence

# Added to squared lengths of queries and keys.
_EPS = 1e-6


class GatedDelta(nn.Module):
  """A layer with a state instead of attention."""
  config: Any

  @nn.compact
  def __call__(self, x, states, updates, slot, view):
    """Continues states; returns `[B, T, F]`, and the updates of the block.
    `states` are of `recurrence.init_states`, `updates` of N slots, of which the
    fresh tokens have those from `slot` on, after their ancestors'; `view` is a
    `recurrence.View`."""
    cfg = self.config
    own = recurrence.project(self, x, states, updates, slot, view,
                             small=("rate", "decay"))
    rate, decay = own.small
    fresh = recurrence.Fresh(
        _unit(own.query) * cfg.linear_key_dim**-0.5, _unit(own.key), own.value,
        recurrence.time_steps(self, decay)[0],
        nn.sigmoid(rate).astype(jnp.float32))
    y, updates = recurrence.scan(fresh, states["state"], updates, slot,
                                 view.mask)
    y = layers.RMSNorm(dataclasses.replace(cfg, norm="rms"), name="norm")(
        y.astype(x.dtype))
    y = y.reshape(own.gate.shape).astype(jnp.float32)
    y = (y * nn.silu(own.gate.astype(jnp.float32))).astype(x.dtype)
    return recurrence.linear(cfg)(
        cfg.dim, axes=(None, parameters.LINEAR), name="out")(y), {
            **updates, "inputs": own.inputs}


def _unit(x):
  return x * jax.lax.rsqrt((x * x).sum(axis=-1, keepdims=True) + _EPS)
