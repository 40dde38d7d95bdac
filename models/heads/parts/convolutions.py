"""Layers of DFlash 2: convolutions around attention and feed-forward layer.

A token's kernel is a base, `[taps, F]`, and for each group of channels what the
sublayer's input adds to it. One kernel is of the sublayer's inputs, and one of
its outputs; the block's first token has nothing before it. Read in
z-lab/dflash@07ebd93d (dflash/model.py).
"""

from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization
from models.transformer import views as views_lib


def check(config) -> None:
  """Raises ValueError for layers that have another order, or other groups."""
  cfg = config.layers
  others = [name for name in ("post_norm", "sandwich_norm", "reordered_norm",
                              "parallel", "num_experts", "full_every")
            if getattr(cfg, name)]
  if others or cfg.residual_scale != 1:
    raise ValueError(f"conv_kernel_size={config.conv_kernel_size}: layers with "
                     f"{', '.join(others) or 'residual_scale'} have no "
                     "convolutions here.")
  if cfg.dim % config.conv_group_size:
    raise ValueError(f"conv_group_size={config.conv_group_size} does not "
                     f"divide dim={cfg.dim}.")


class Layers(nn.Module):
  """Decoder layers of a block, with the sizes of a `block.Config`.
  Their parameters are `decoder.Unrolled`'s, and those of the convolutions."""
  config: Any

  @nn.compact
  def __call__(self, x, cache, block, slot, views):
    """Returns `[B, T, F]` in a tuple; no block, which nothing reads."""
    for i, kv in enumerate(zip(*views_lib.kv_of_layers(cache, block))):
      x = _Layer(self.config, name=f"layer_{i}")(x, kv, slot, views[0])
    return (x,)


class _Layer(nn.Module):
  config: Any

  @nn.compact
  def __call__(self, x, kv, slot, view):
    cfg = self.config.layers

    def add(x, sublayer, name, kernels):
      inputs = layers.NORMS[cfg.norm](cfg, name=name)(x)
      before, after = _Kernels(self.config, name=kernels)(inputs)
      return x + _convolved(sublayer(_convolved(inputs, before)), after)

    x = add(x, lambda y: layers.Attention(cfg, name="attention")(
        y, kv[:-2], kv[-2:], slot, view)[0], "attention_norm", "attention_conv")
    return add(x, layers.FeedForward(cfg, name="feed_forward"),
               "feed_forward_norm", "mlp_conv")


class _Kernels(nn.Module):
  """Two kernels `[B, T, taps, F]` of each token, which begin as identities."""
  config: Any

  @nn.compact
  def __call__(self, x):
    config, cfg = self.config, self.config.layers
    dtype, zeros = jnp.dtype(cfg.dtype), nn.initializers.zeros
    taps = config.conv_kernel_size
    groups = cfg.dim // config.conv_group_size
    base = self.param("base_kernel", lambda key, *args: zeros(
        key, *args).at[:, 0].set(1), (2, taps, cfg.dim), dtype)
    weights = self.param(
        "kernel_projection", quantization.initializer(zeros, cfg.weights),
        (2 * taps * groups, cfg.dim), dtype)
    own = linear_ops.matmul(x, weights).astype(dtype).reshape(
        *x.shape[:2], 2, taps, groups)
    kernels = base[None, None] + jnp.repeat(
        own, config.conv_group_size, axis=-1)
    return kernels[:, :, 0], kernels[:, :, 1]


def _convolved(x, kernel):
  """Returns `[B, T, F]`, each token's sum over the newest taps."""
  return sum(kernel[:, :, i] * jnp.pad(x, ((0, 0), (i, 0), (0, 0)))[
      :, :x.shape[1]] for i in range(kernel.shape[2]))
