"""Layers of a decoder: projections, norms, attention, feed-forward layer.

Activations are feature-major, `[F, n]`, and weights stand on the left as
`[out, in]`: with the few fresh tokens of a decoding step this is the faster
layout on a CPU, and it is the layout of published checkpoints. The tokens of
all rows stand after one another; columns that are no tokens may follow, so
that there are as many as products like.

A `config` is a `transformer.Config`.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax import types
from models.transformer import linear_ops
from models.transformer import moe
from models.transformer import norms
from models.transformer import quantization
from models.transformer import rope

INIT = nn.initializers.normal(0.02)


class View(NamedTuple):
  """What a layer sees of the text.

  Attributes:
    turns: of queries and keys; None without rotation.
    prefix: mask `[B, 1 or T, S]` of what may be attended to in the cache.
    block: mask `[B, T, N]` of what may in the block.
  """
  turns: rope.Turns | None
  prefix: types.Array
  block: types.Array


class Linear(nn.Module):
  """`[in, n] -> [out, n]`, weights on the left."""
  features: int
  bias: bool
  dtype: Any
  weights: str = quantization.DTYPE

  @nn.compact
  def factors(self, inputs):
    """Weights `[out, in]`, and a bias `[out, 1]` or None."""
    kernel = self.param("kernel", quantization.initializer(INIT, self.weights),
                        (self.features, inputs), self.dtype)
    bias = self.param("bias", nn.initializers.zeros, (self.features, 1),
                      self.dtype) if self.bias else None
    return kernel, bias

  def __call__(self, x):
    return project([self], x)[0]


def project(linears, x):
  """What several of `Linear` make of the same columns `[in, n]`."""
  kernels, biases = zip(*(linear.factors(len(x)) for linear in linears))
  ys = [y.astype(x.dtype) for y in linear_ops.matmuls(kernels, x)]
  return [y if bias is None else y + bias for y, bias in zip(ys, biases)]


class RMSNorm(nn.Module):
  """Root mean square normalisation over features, `[..., F, n]`, in float32."""
  config: Any

  @nn.compact
  def __call__(self, x):
    plus_one = self.config.norm == "rms_plus_one"
    ones_or_zeros = nn.initializers.zeros if plus_one else nn.initializers.ones
    scale = self.param("scale", ones_or_zeros, (x.shape[-2], 1),
                       jnp.dtype(self.config.dtype))
    return norms.rms(x, scale, self.config.norm_eps, plus_one)


class LayerNorm(nn.Module):
  """Mean and variance normalisation over features, in float32."""
  config: Any

  @nn.compact
  def __call__(self, x):
    dtype = jnp.dtype(self.config.dtype)
    scale = self.param("scale", nn.initializers.ones, (x.shape[0], 1), dtype)
    bias = self.param("bias", nn.initializers.zeros, (x.shape[0], 1), dtype)
    y = x.astype(jnp.float32)
    y -= jnp.mean(y, axis=0, keepdims=True)
    y *= jax.lax.rsqrt(
        jnp.mean(y * y, axis=0, keepdims=True) + self.config.norm_eps)
    return y.astype(x.dtype) * scale + bias


class FeedForward(nn.Module):
  """Feed-forward layer, gated (Shazeer 2020, arXiv 2002.05202) or plain."""
  config: Any

  @nn.compact
  def __call__(self, x):
    activation, gated = FEED_FORWARDS[self.config.feed_forward]
    linear = _linear(self.config, self.config.feed_forward_bias)
    names = ("gate", "up") if gated else ("up",)
    first, *rest = project(
        [linear(self.config.hidden_dim, name=name) for name in names], x)
    hidden = activation(first)
    for up in rest:
      hidden *= up
    return linear(self.config.dim, name="down")(hidden)


class Mixture(nn.Module):
  """Several gated feed-forward layers, of which each token uses a few.

  And one that all use, where the architecture has it.
  """
  config: Any

  @nn.compact
  def __call__(self, x):
    cfg = self.config
    activation, _ = FEED_FORWARDS[cfg.feed_forward]
    kernels = lambda name, features, inputs: moe.Kernels(
        cfg, features, quantization.initializer(INIT, cfg.weights),
        name=name)(inputs)
    # A token that is rounded to other experts is off by more than a rounding.
    logits = _linear(cfg, False)(cfg.num_experts, weights=quantization.DTYPE,
                                 name="router")(x)
    y = moe.mix(
        moe.shares(logits, cfg.experts_per_token, cfg.normalize_experts),
        x, activation, kernels("gate", cfg.hidden_dim, len(x)),
        kernels("up", cfg.hidden_dim, len(x)),
        kernels("down", len(x), cfg.hidden_dim))
    if not cfg.shared_dim:
      return y
    gate = _linear(cfg, False)(1, weights=quantization.DTYPE,
                               name="shared_gate")(x)
    shared = dataclasses.replace(cfg, hidden_dim=cfg.shared_dim)
    return y + nn.sigmoid(gate) * FeedForward(shared, name="shared")(x)


class Attention(nn.Module):
  """Attention over the cache and the block, in one softmax."""
  config: Any

  @nn.compact
  def __call__(self, x, prefix, block, slot, view):
    """Attends and adds the fresh keys and values to the block.

    Args:
      x: `[F, n]`, the first B * T columns of which are the fresh tokens.
      prefix: keys `[B, H, C, S]` and values `[B, H, S, C]` of the cache.
      block: keys `[B, H, C, N]` and values `[B, H, N, C]`.
      slot: where in the block the first fresh token goes.
      view: a `View`.

    Returns:
      `[F, n]`, and the block with the fresh keys and values.
    """
    cfg = self.config
    batch, length, _ = view.block.shape
    heads = (cfg.num_kv_heads, -1, cfg.head_dim, batch, length)

    linear = _linear(cfg, cfg.qkv_bias)
    numbers = {"query": cfg.num_heads, "key": cfg.num_kv_heads,
               "value": cfg.num_kv_heads}
    q, k, v = project([linear(number * cfg.head_dim, name=name)
                       for name, number in numbers.items()], x)

    def norm(y, name):
      if cfg.qk_norm:
        y = y.reshape(numbers[name], cfg.head_dim, -1)
      if cfg.qk_norm or cfg.joint_qk_norm:
        y = RMSNorm(cfg, name=f"{name}_norm")(y)
      return y

    q, k, v = (y[..., :batch * length].reshape(heads)
               for y in (norm(q, "query"), norm(k, "key"), v))
    v = v[:, 0]
    if view.turns is not None:
      q, k = rope.rotate(q, view.turns), rope.rotate(k, view.turns)
    block = (_write(block[0], k[:, 0].transpose(2, 0, 1, 3), slot, axis=3),
             _write(block[1], v.transpose(2, 0, 3, 1), slot, axis=2))
    # A cache of no slots (training) is left out of the program altogether.
    parts = [(*block, view.block[:, None, None])]
    if prefix[0].shape[-1]:
      parts.insert(0, (*prefix, view.prefix[:, None, None]))
    y = linear_ops.attention(q * (cfg.query_scalar or cfg.head_dim)**-0.5,
                             parts, cfg.attention_softcap)
    y = linear_ops.pad(
        y.reshape(cfg.num_heads * cfg.head_dim, batch * length), x.shape[1])
    return _linear(cfg, cfg.out_bias)(cfg.dim, name="out")(y), block


class Layer(nn.Module):
  """Attention and feed-forward, with norms before or after them or both."""
  config: Any

  @nn.compact
  def __call__(self, x, kv, narrow, slot, views):
    """Goes through one layer.

    Args:
      x: `[F, n]`, the first B * T columns of which are the fresh tokens.
      kv: `(prefix keys, prefix values, block keys, block values)`.
      narrow: `[]` bool, which of two views is this layer's; None for one.
      slot: where in the block the first fresh token goes.
      views: tuple of a `View`, or of two, of which the narrow one is the last.

    Returns:
      `[F, n]`, and the block with the fresh keys and values.
    """
    cfg = self.config
    view = views[0] if narrow is None else jax.tree.map(
        lambda full, other: jnp.where(narrow, other, full), *views)
    ahead = not (cfg.post_norm or cfg.reordered_norm)
    after = cfg.sandwich_norm or cfg.reordered_norm

    def norm(x, name, used):
      return NORMS[cfg.norm](cfg, name=name)(x) if used else x

    y, block = Attention(cfg, name="attention")(
        norm(x, "attention_norm", ahead), kv[:2], kv[2:], slot, view)
    y = _times(norm(y, "attention_out_norm", after), cfg.residual_scale)
    total = norm(x + y, "attention_norm", cfg.post_norm)
    feed_forward = Mixture if cfg.num_experts else FeedForward
    y = feed_forward(cfg, name="feed_forward")(
        norm(x if cfg.parallel else total, "feed_forward_norm", ahead))
    y = _times(norm(y, "feed_forward_out_norm", after), cfg.residual_scale)
    return norm(total + y, "feed_forward_norm", cfg.post_norm), block


def _gelu(x, approximate=True):
  """GELU, by its tanh approximation or not, rounded once."""
  return nn.gelu(x.astype(jnp.float32), approximate).astype(x.dtype)


def _times(x, factor):
  """Rounded once."""
  return x if factor == 1 else (x.astype(jnp.float32) * factor).astype(x.dtype)


NORMS = {"rms": RMSNorm, "rms_plus_one": RMSNorm, "layer": LayerNorm}
# Activations, and whether they gate.
FEED_FORWARDS = {"swiglu": (nn.silu, True), "geglu": (_gelu, True),
                 "relu": (nn.relu, False), "gelu": (_gelu, False),
                 "erf_gelu": (functools.partial(_gelu, approximate=False),
                              False)}


def _linear(config, bias):
  return functools.partial(Linear, bias=config.bias or bias,
                           dtype=jnp.dtype(config.dtype),
                           weights=config.weights)


def _write(block, fresh, slot, axis):
  return jax.lax.dynamic_update_slice_in_dim(
      block, fresh.astype(block.dtype), slot, axis)
