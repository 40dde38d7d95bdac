"""Latent attention (MLA): one compressed vector a token for all heads.

DeepSeek-V2 (arXiv 2405.04434, section 2.1). A cache holds each token's normed
latent vector and one rotated key for all heads, `latent_dim + head_dim`
numbers. Keys and values are never made: queries are multiplied by a head's key
matrix, and outputs by its value matrix (the absorbed form, section 2.1.2). So a
cache has one key/value head, with rotated keys and latent vectors as values,
which are scored as well.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax import kernels
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import parameters
from models.transformer import quantization
from models.transformer import rope

# Of the norms within attention, whatever the others' is: as in the authors'
# code, and in transformers.
_EPS = 1e-6
_HEADS = (parameters.HEADS, None)


class LatentAttention(nn.Module):
  """Attention over latent vectors of the cache and the block."""
  config: Any

  @nn.compact
  def __call__(self, x, prefix, block, slot, view):
    """Attends; as `layers.Attention`, but for what cache and block hold. These
    are rotated keys `[B, 1, head_dim, S]` and latent vectors `[B, 1, S,
    latent_dim]`."""
    cfg = self.config
    plain, key, latent = self._projected(x)
    plain, rotated = jnp.split(plain, [cfg.plain_dim], axis=-1)
    rotated, key = (self._rotated(y, view.angles)
                    for y in (rotated, key[:, :, None]))
    latent = latent[:, :, None]
    if view.packing:
      key, latent = map(view.packing.rows, (key, latent))
    block = layers.write(block, key, latent, slot)
    q = jnp.concatenate([rotated, HeadKernels(
        cfg, cfg.latent_dim, name="key")(plain)], axis=-1)
    q *= (cfg.query_scalar or cfg.plain_dim + cfg.head_dim)**-0.5
    if view.packing:
      q = view.packing.rows(q)
    y = kernels.attention(q[:, :, None], view.parts(prefix, block),
                          cfg.attention_softcap)[:, :, 0]
    if view.packing:
      y = view.packing.packed(y)
    y = HeadKernels(cfg, cfg.value_dim, name="value")(y)
    return self._linear(cfg.dim, (None, parameters.HEADS), "out")(
        y.reshape(*x.shape[:2], -1)), block

  def _projected(self, x):
    """Returns queries `[B, T, H, C]`, rotated keys and latent vectors."""
    cfg = self.config
    norm = functools.partial(layers.RMSNorm,
                             dataclasses.replace(cfg, norm_eps=_EPS))
    queries = self._linear(cfg.num_heads * (cfg.plain_dim + cfg.head_dim),
                           _HEADS, "query")
    down = self._linear(cfg.latent_dim + cfg.head_dim, parameters.WHOLE,
                        "latent")
    first = self._linear(cfg.query_rank, parameters.WHOLE,
                         "query_down") if cfg.query_rank else queries
    latent, q = layers.project([down, first], x)
    if cfg.query_rank:
      q = queries(norm(name="query_norm")(q))
    latent, key = jnp.split(latent, [cfg.latent_dim], axis=-1)
    return (q.reshape(*x.shape[:2], cfg.num_heads, -1), key,
            norm(name="latent_norm")(latent))

  def _rotated(self, x, angles):
    if self.config.rope_interleaved:
      # The scores are the same in any order that queries and keys share.
      x = x.reshape(*x.shape[:-1], -1, 2).swapaxes(-1, -2).reshape(x.shape)
    return rope.rotate(x, angles)

  def _linear(self, features, axes, name):
    cfg = self.config
    return layers.Linear(features, False, jnp.dtype(cfg.dtype), cfg.weights,
                         axes, cfg.scan_layers, name=name)


class HeadKernels(nn.Module):
  """A matrix `[features, inputs]` of each head, one after the other."""
  config: Any
  features: int

  @nn.compact
  def __call__(self, x):
    """Returns `[B, T, H, features]` of `[B, T, H, inputs]`."""
    cfg = self.config
    kernel = parameters.declare(
        self, "kernel", quantization.initializer(layers.INIT, cfg.weights),
        (cfg.num_heads * self.features, x.shape[-1]), jnp.dtype(cfg.dtype),
        _HEADS)
    of_heads = jax.tree.map(
        lambda w: w.reshape(cfg.num_heads, self.features, -1), kernel)
    product = lambda x, w: linear_ops.matmuls(x, (w,), cfg.scan_layers)[0]
    return jax.vmap(product, (2, 0), 2)(x, of_heads).astype(x.dtype)
