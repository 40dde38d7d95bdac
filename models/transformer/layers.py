"""Layers of a decoder: projections, norms, attention, feed-forward layer.

Activations are `[B, T, F]`, weights `[out, in]` as published, biases and scales
`[F]`; `config` is a `transformer.Config`. This code computes on every platform;
faster single operations are in `decoding_jax.kernels`.
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax import types
from models.transformer import linear_ops
from models.transformer import moe
from models.transformer import parameters
from models.transformer import quantization
from models.transformer import rope

INIT = nn.initializers.normal(0.02)
_HEADS, _KV_HEADS = (parameters.HEADS, None), (parameters.KV_HEADS, None)
_WHOLE = parameters.WHOLE


class Packing(NamedTuple):
  """Tokens of all rows in one, `[1, P, F]`, of which attention has rows again.
  `tokens [P]` are indices into B * T; `places [B, T]` are those into P, any
  index for a token that is not packed."""
  tokens: types.Array
  places: types.Array

  def rows(self, x):
    """Returns `[1, P, ...]` as `[B, T, ...]`."""
    return x[0][self.places]

  def packed(self, x):
    """Returns `[B, T, ...]` as `[1, P, ...]`."""
    flat = x.reshape(-1, *x.shape[2:])
    return flat.at[self.tokens].get(mode="clip")[None]


def packing(tokens, shape) -> Packing:
  """Returns the packing of `tokens [P]` of the B * T; others are of none."""
  size = len(tokens)
  places = jnp.zeros(math.prod(shape), jnp.int32).at[tokens].set(
      jnp.arange(size, dtype=jnp.int32), mode="drop")
  return Packing(tokens, places.reshape(shape))


class AttentionView(NamedTuple):
  """A layer's view: what its fresh tokens see of the text."""
  # By which queries and keys are rotated; None without rotation
  angles: rope.RotaryAngles | None
  # Mask `[B, 1 or T, S]` of what may be attended to in the cache
  prefix: types.Array
  block: types.Array  # Mask `[B, T, N]` of what may in the block
  # The same as `prefix`, if it is the slots between two ends; or None
  span: kernels.Span | None = None
  # Mask `[1, 1, S]` or `[B, T, S]` and span of what rows share; () where they
  # share nothing
  shared: tuple[types.Array, kernels.Span] | tuple[()] = ()
  # Of activations `[1, P, F]`; None where they are `[B, T, F]`
  packing: Packing | None = None

  def of_layer(self, number):
    """Returns the view of a layer, of a cache of all layers."""
    spans = [span._replace(layer=number)
             for span in (self.span, *self.shared[1:])]
    return self._replace(span=spans[0],
                         shared=(*self.shared[:1], *spans[1:]))

  def parts(self, prefix, block):
    """Returns what `kernels.attention` attends to, of cache and block."""
    # A cache of no slots (training) is left out of the program altogether.
    parts = [(*block, self.block)]
    if prefix[0].shape[-1]:
      parts.insert(0, (*prefix[:2], self.prefix, self.span))
    if self.shared:
      parts.insert(0, (*prefix[2:], *self.shared))
    return parts


class Linear(nn.Module):
  """A linear layer, `[..., in] -> [..., out]`."""
  features: int  # Out
  bias: bool  # Whether it has one
  dtype: Any  # Of the parameters
  weights: str = quantization.DTYPE  # See `quantization`
  # What out and in are made of, see `parameters.declare`; within a `Decoder` it
  # must be given
  axes: tuple[str | None, str | None] | None = None
  sliced: bool = False  # Whether weights are slices of all layers' weights

  @nn.compact
  def factors(self, inputs):
    """Returns weights `[out, in]`, and a bias `[out]` or None."""
    kernel = parameters.declare(
        self, "kernel", quantization.initializer(INIT, self.weights),
        (self.features, inputs), self.dtype, self.axes)
    bias = parameters.declare(
        self, "bias", nn.initializers.zeros, (self.features,), self.dtype,
        self.axes and self.axes[:1]) if self.bias else None
    return kernel, bias

  def __call__(self, x):
    return project([self], x)[0]


def project(linears, x):
  """Returns what several of `Linear` make of the same `[..., in]`."""
  weights, biases = zip(*(linear.factors(x.shape[-1]) for linear in linears))
  ys = linear_ops.matmuls(x, weights, linears[0].sliced, x.dtype)
  return [y if bias is None else y + _along(bias, y)
          for y, bias in zip(ys, biases)]


class RMSNorm(nn.Module):
  """Root mean square normalisation over features, in float32."""
  config: Any

  @nn.compact
  def __call__(self, x):
    plus_one = self.config.norm == "rms_plus_one"
    ones_or_zeros = nn.initializers.zeros if plus_one else nn.initializers.ones
    scale = parameters.declare(self, "scale", ones_or_zeros, x.shape[-1:],
                               jnp.dtype(self.config.dtype), _WHOLE[:1])
    return kernels.rms_norm(x, scale, self.config.norm_eps, plus_one)


class LayerNorm(nn.Module):
  """Mean and variance normalisation over features, in float32."""
  config: Any

  @nn.compact
  def __call__(self, x):
    dtype = jnp.dtype(self.config.dtype)
    scale, bias = (
        parameters.declare(self, name, init, x.shape[-1:], dtype, _WHOLE[:1])
        for name, init in (("scale", nn.initializers.ones),
                           ("bias", nn.initializers.zeros)))
    y = x.astype(jnp.float32)
    y -= jnp.mean(y, axis=-1, keepdims=True)
    y *= jax.lax.rsqrt(
        jnp.mean(y * y, axis=-1, keepdims=True) + self.config.norm_eps)
    return y.astype(x.dtype) * _along(scale, y) + _along(bias, y)


class FeedForward(nn.Module):
  """Feed-forward layer, gated (Shazeer 2020, arXiv 2002.05202) or plain."""
  config: Any
  hidden: str = parameters.HIDDEN

  @nn.compact
  def __call__(self, x):
    activation, gated = FEED_FORWARDS[self.config.feed_forward]
    linear = _linear(self.config, self.config.feed_forward_bias)
    names = ("gate", "up") if gated else ("up",)
    first, *rest = project(
        [linear(self.config.hidden_dim, axes=(self.hidden, None), name=name)
         for name in names], x)
    if self.config.feed_forward == "swiglu":
      hidden = kernels.swiglu(first, *rest)
    else:
      hidden = functools.reduce(jnp.multiply, rest, activation(first))
    return linear(self.config.dim, axes=(None, self.hidden),
                  name="down")(hidden)


class Mixture(nn.Module):
  """Gated feed-forward layers, of which each token uses a few. And a shared one
  that all tokens use, where the architecture has it."""
  config: Any

  @nn.compact
  def __call__(self, x):
    cfg = self.config
    activation, _ = FEED_FORWARDS[cfg.feed_forward]
    hidden = parameters.HIDDEN
    experts = lambda name, features, inputs, axes: moe.Kernels(
        cfg, features, axes, quantization.initializer(INIT, cfg.weights),
        name=name)(inputs)
    tokens = x.reshape(-1, cfg.dim)
    # Not quantised: a token that goes to other experts is off by more than a
    # rounding.
    logits = _linear(cfg, False)(
        cfg.num_experts, weights=quantization.DTYPE, axes=_WHOLE,
        name="router")(tokens.astype(jnp.float32) if cfg.expert_groups
                       else tokens)
    correction = parameters.declare(
        self, "correction", nn.initializers.zeros, (cfg.num_experts,),
        jnp.float32, (None,)) if cfg.router == "sigmoid" else None
    y = moe.mix(
        moe.shares(logits, cfg, correction), tokens, activation,
        experts("gate", cfg.hidden_dim, cfg.dim, (hidden, None)),
        experts("up", cfg.hidden_dim, cfg.dim, (hidden, None)),
        experts("down", cfg.dim, cfg.hidden_dim, (None, hidden))
    ).reshape(x.shape)
    if not cfg.shared_dim:
      return y
    shared = FeedForward(dataclasses.replace(cfg, hidden_dim=cfg.shared_dim),
                         parameters.SHARED, name="shared")(x)
    if cfg.shared_gate:
      shared *= nn.sigmoid(_linear(cfg, False)(
          1, weights=quantization.DTYPE, axes=_WHOLE, name="shared_gate")(x))
    return y + shared


class Attention(nn.Module):
  """Attention over the cache and the block, in one softmax."""
  config: Any

  @nn.compact
  def __call__(self, x, prefix, block, slot, view):
    """Attends; returns `[B, T, F]`, and the block with fresh keys and values.
    `prefix` are the cache's keys `[B, H, C, S]` and values `[B, H, S, C]`, then
    those shared by all rows, `[1, H, C, S]`, if any; with an axis of layers in
    front where the view's spans have a `layer`. `block` has N slots, of which
    `slot` is the first fresh token's."""
    cfg = self.config
    linear = _linear(cfg, cfg.qkv_bias)
    heads_of = {"query": (cfg.num_heads, _HEADS),
                "key": (cfg.num_kv_heads, _KV_HEADS),
                "value": (cfg.num_kv_heads, _KV_HEADS)}
    q, k, v = project([linear(number * cfg.head_dim, axes=axes, name=name)
                       for name, (number, axes) in heads_of.items()], x)
    gate = project([linear(q.shape[-1], axes=_HEADS, name="gate")],
                   x)[0] if cfg.attention_gate else None

    def normed(y, name):
      return RMSNorm(cfg, name=f"{name}_norm")(y)

    if cfg.joint_qk_norm:
      q, k = normed(q, "query"), normed(k, "key")
    heads = (*x.shape[:2], -1, cfg.head_dim)
    q, k, v = (y.reshape(heads) for y in (q, k, v))  # [B, T, heads, C]
    if cfg.qk_norm:
      q, k = normed(q, "query"), normed(k, "key")
    if view.angles is not None:
      q, k = rope.rotate(q, view.angles), rope.rotate(k, view.angles)
    if view.packing:
      q, k, v = map(view.packing.rows, (q, k, v))
    block = write(block, k, v, slot)
    q *= (cfg.query_scalar or cfg.head_dim)**-0.5
    grouped = (*q.shape[:2], cfg.num_kv_heads, -1, cfg.head_dim)
    y = kernels.attention(q.reshape(grouped), view.parts(prefix, block),
                          cfg.attention_softcap)
    y = y.reshape(*q.shape[:2], cfg.num_heads * cfg.head_dim)
    if view.packing:
      y = view.packing.packed(y)
    if cfg.attention_gate:
      y *= nn.sigmoid(gate)
    return _linear(cfg, cfg.out_bias)(
        cfg.dim, axes=(None, parameters.HEADS), name="out")(y), block


class Layer(nn.Module):
  """Attention and feed-forward layer, with norms before or after them."""
  config: Any  # The architecture
  # What there is instead of attention, and its name; None for nothing
  mixer: tuple[Any, str] | None = None

  @nn.compact
  def __call__(self, x, kv, narrow, slot, views):
    """Returns `[B, T, F]`, and the block with what fresh tokens add to it. `kv`
    is of `views.kv_of_layers`, of this layer, or what another mixer reads;
    `narrow []` says which of two views is its own (the second), None for
    one."""
    cfg = self.config
    view = views[0] if narrow is None else jax.tree.map(
        lambda full, other: jnp.where(narrow, other, full), *views)
    ahead = not (cfg.post_norm or cfg.reordered_norm)
    after = cfg.sandwich_norm or cfg.reordered_norm

    def norm(x, name, used):
      return NORMS[cfg.norm](cfg, name=name)(x) if used else x

    mixer, name = self.mixer or (cfg.attention, "attention")
    prefix, block = kv if self.mixer else (kv[:-2], kv[-2:])
    y, block = mixer(cfg, name=name)(
        norm(x, "attention_norm", ahead), prefix, block, slot, view)
    y = _times(norm(y, "attention_out_norm", after), cfg.residual_scale)
    total = norm(kernels.add(x, y), "attention_norm", cfg.post_norm)
    feed_forward = Mixture if cfg.num_experts else functools.partial(
        FeedForward, hidden=parameters.DENSE if cfg.dense_dim else
        parameters.HIDDEN)
    y = feed_forward(cfg, name="feed_forward")(
        norm(x if cfg.parallel else total, "feed_forward_norm", ahead))
    y = _times(norm(y, "feed_forward_out_norm", after), cfg.residual_scale)
    return norm(kernels.add(total, y), "feed_forward_norm",
                cfg.post_norm), block


def _gelu(x, approximate=True):
  """Returns the GELU, or its tanh approximation, rounded once."""
  return nn.gelu(x.astype(jnp.float32), approximate).astype(x.dtype)


def _times(x, factor):
  """Returns a product that is rounded once."""
  return x if factor == 1 else (x.astype(jnp.float32) * factor).astype(x.dtype)


NORMS = {"rms": RMSNorm, "rms_plus_one": RMSNorm, "layer": LayerNorm}
# Activations, and whether they are gates.
FEED_FORWARDS = {"swiglu": (nn.silu, True), "geglu": (_gelu, True),
                 "relu": (nn.relu, False), "gelu": (_gelu, False),
                 "erf_gelu": (functools.partial(_gelu, approximate=False),
                              False)}


def _linear(config, bias):
  return functools.partial(Linear, bias=config.bias or bias,
                           dtype=jnp.dtype(config.dtype),
                           weights=config.weights, sliced=config.scan_layers)


def _along(parameter, y):
  """Returns `[F]` with as many axes as `[..., F]`."""
  return jnp.expand_dims(parameter, range(y.ndim - 1))


def write(block, keys, values, slot):
  """Returns a block's keys and values with fresh ones, `[B, T, heads, C]`."""
  def put(old, fresh, axis):
    return jax.lax.dynamic_update_slice_in_dim(
        old, fresh.astype(old.dtype), slot, axis)

  return (put(block[0], keys.transpose(0, 2, 3, 1), axis=3),
          put(block[1], values.transpose(0, 2, 1, 3), axis=2))
