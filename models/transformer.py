"""One decoder for the Llama and OPT families.

Llama: RMSNorm, rotary positions, grouped-query attention, gated SiLU; Mistral
adds a window, Qwen2 biases of the attention's inputs, Qwen3 their norms.
OPT: LayerNorm, learned positions, biases, ReLU; one size has its norms behind
the layers and projections around them.

Activations are feature-major, `[F, B * T]`, and weights stand on the left as
`[out, in]`: with the few fresh tokens of a decoding step this is the faster
layout on a CPU, and it is the layout of published checkpoints.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax import types
from models import products
from models import rope


@dataclasses.dataclass(frozen=True)
class Config:
  """Architecture of a decoder.

  Attributes:
    vocab_size: V.
    dim: width of the residual stream.
    num_layers: layers.
    num_heads: query heads.
    num_kv_heads: key/value heads; divides `num_heads`.
    head_dim: channels of a head.
    hidden_dim: width of the feed-forward layer.
    max_length: positions; the size of the table if they are learned.
    norm: "rms" or "layer".
    positions: "rope" or "learned".
    feed_forward: "swiglu" or "relu".
    bias: whether all projections have biases; else the next three count.
    qkv_bias: whether query, key and value have biases.
    out_bias: whether the output of the attention has.
    feed_forward_bias: whether the feed-forward layer has.
    tie_embeddings: whether the output layer is the embedding.
    outputs: of each token, if they are not the logits of V tokens but, say,
      one reward; 0: V logits.
    norm_eps: added to the variance.
    qk_norm: whether the channels of a query or key head are normalised.
    post_norm: norms behind attention and feed-forward layer, none at the end.
    embedding_dim: width of embedding and output layer, if projections lie
      between them and the residual stream; 0: `dim`, and none.
    window: positions that a token attends to, itself included; 0: all.
    rope_theta: base of the rotary wavelengths.
    rope_scaling: one of `rope.KINDS`, see there.
    rope_factor: of the scaling.
    rope_low_turns, rope_high_turns: ends of the ramp of "llama3".
    rope_original_length: of "llama3", the length before it was scaled.
    scan_layers: one scanned layer instead of unrolled ones: compiles in
      constant time, at the price of a slice of the cache a layer.
    dtype: of parameters, activations and caches.
  """
  vocab_size: int
  dim: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  hidden_dim: int
  max_length: int
  norm: str = "rms"
  positions: str = "rope"
  feed_forward: str = "swiglu"
  bias: bool = False
  qkv_bias: bool = False
  out_bias: bool = False
  feed_forward_bias: bool = False
  tie_embeddings: bool = True
  outputs: int = 0
  norm_eps: float = 1e-5
  qk_norm: bool = False
  post_norm: bool = False
  embedding_dim: int = 0
  window: int = 0
  rope_theta: float = 10000.0
  rope_scaling: str = "none"
  rope_factor: float = 1.0
  rope_low_turns: float = 1.0
  rope_high_turns: float = 4.0
  rope_original_length: float = 0.0
  scan_layers: bool = False
  dtype: str = "float32"

  def __post_init__(self):
    for field, allowed in (("norm", _NORMS), ("positions", _POSITIONS),
                           ("feed_forward", _FEED_FORWARDS),
                           ("rope_scaling", rope.KINDS),
                           ("dtype", _DTYPES)):
      if getattr(self, field) not in allowed:
        raise ValueError(
            f"transformer {field}={getattr(self, field)!r} is not one of "
            f"{sorted(allowed)}.")
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
          f"transformer num_kv_heads={self.num_kv_heads} does not divide "
          f"num_heads={self.num_heads}.")
    if self.outputs and self.tie_embeddings:
      raise ValueError(f"transformer outputs={self.outputs} needs "
                       "tie_embeddings=False.")


class Linear(nn.Module):
  """`[in, n] -> [out, n]`, weights on the left."""
  features: int
  bias: bool
  dtype: Any

  @nn.compact
  def __call__(self, x):
    kernel = self.param("kernel", _INIT, (self.features, x.shape[0]),
                        self.dtype)
    y = products.matmul(kernel, x).astype(x.dtype)
    if self.bias:
      y += self.param("bias", nn.initializers.zeros, (self.features, 1),
                      self.dtype)
    return y


class RMSNorm(nn.Module):
  """Root mean square normalisation over features, `[..., F, n]`, in float32."""
  config: Config

  @nn.compact
  def __call__(self, x):
    scale = self.param("scale", nn.initializers.ones, (x.shape[-2], 1),
                       jnp.dtype(self.config.dtype))
    y = x.astype(jnp.float32)
    y *= jax.lax.rsqrt(
        jnp.mean(y * y, axis=-2, keepdims=True) + self.config.norm_eps)
    return y.astype(x.dtype) * scale


class LayerNorm(nn.Module):
  """Mean and variance normalisation over features, in float32."""
  config: Config

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


class SwiGLU(nn.Module):
  """Gated feed-forward layer (Shazeer 2020, arXiv 2002.05202)."""
  config: Config

  @nn.compact
  def __call__(self, x):
    linear = _linear(self.config, self.config.feed_forward_bias)
    gate = linear(self.config.hidden_dim, name="gate")(x)
    up = linear(self.config.hidden_dim, name="up")(x)
    return linear(self.config.dim, name="down")(nn.silu(gate) * up)


class ReLU(nn.Module):
  """Plain feed-forward layer."""
  config: Config

  @nn.compact
  def __call__(self, x):
    linear = _linear(self.config, self.config.feed_forward_bias)
    hidden = nn.relu(linear(self.config.hidden_dim, name="up")(x))
    return linear(self.config.dim, name="down")(hidden)


class Attention(nn.Module):
  """Attention over the cache and the block, in one softmax."""
  config: Config

  @nn.compact
  def __call__(self, x, angles, prefix, block, slot, masks):
    """Attends and adds the fresh keys and values to the block.

    Args:
      x: `[F, B * T]`.
      angles: `[C / 2, B, T]` rotary angles; None without rotation.
      prefix: keys `[B, H, C, S]` and values `[B, H, S, C]` of the cache.
      block: keys `[B, H, C, N]` and values `[B, H, N, C]`.
      slot: where in the block the first fresh token goes.
      masks: `[B, 1 or T, S]` and `[B, T, N]`, what may be attended to.

    Returns:
      `[F, B * T]`, and the block with the fresh keys and values.
    """
    cfg = self.config
    batch, length, _ = masks[1].shape
    heads = (cfg.num_kv_heads, -1, cfg.head_dim, batch, length)

    def project(name, num_heads, norm=False):
      y = _linear(cfg, cfg.qkv_bias)(num_heads * cfg.head_dim, name=name)(x)
      if norm:
        y = RMSNorm(cfg, name=f"{name}_norm")(
            y.reshape(num_heads, cfg.head_dim, -1))
      return y.reshape(heads)

    q = project("query", cfg.num_heads, cfg.qk_norm)
    k = project("key", cfg.num_kv_heads, cfg.qk_norm)
    v = project("value", cfg.num_kv_heads)[:, 0]
    if angles is not None:
      q, k = rope.rotate(q, angles), rope.rotate(k, angles)
    block = (_write(block[0], k[:, 0].transpose(2, 0, 1, 3), slot, axis=3),
             _write(block[1], v.transpose(2, 0, 3, 1), slot, axis=2))
    # A cache of no slots (training) is left out of the program altogether.
    parts = [(*block, masks[1][:, None, None])]
    if prefix[0].shape[-1]:
      parts.insert(0, (*prefix, masks[0][:, None, None]))
    y = products.attention(q * cfg.head_dim**-0.5, parts)
    y = y.reshape(cfg.num_heads * cfg.head_dim, batch * length)
    return _linear(cfg, cfg.out_bias)(cfg.dim, name="out")(y), block


class Layer(nn.Module):
  """Attention and feed-forward, each with its norm before or behind it."""
  config: Config

  @nn.compact
  def __call__(self, x, kv, angles, slot, masks):
    """`kv` is `(prefix keys, prefix values, block keys, block values)`."""
    cfg = self.config
    attention_norm = _NORMS[cfg.norm](cfg, name="attention_norm")
    feed_forward_norm = _NORMS[cfg.norm](cfg, name="feed_forward_norm")
    feed_forward = _FEED_FORWARDS[cfg.feed_forward](cfg, name="feed_forward")
    y, block = Attention(cfg, name="attention")(
        x if cfg.post_norm else attention_norm(x), angles, kv[:2], kv[2:],
        slot, masks)
    x += y
    if cfg.post_norm:
      x = attention_norm(x)
      return feed_forward_norm(x + feed_forward(x)), block
    return x + feed_forward(feed_forward_norm(x)), block


class Decoder(nn.Module):
  """Token and position embedding, layers, output layer."""
  config: Config

  @nn.compact
  def __call__(self, tokens, positions, cache, block, slot, mask):
    """See `types.LanguageModel.forward`."""
    cfg = self.config
    dtype = jnp.dtype(cfg.dtype)
    width = cfg.embedding_dim or cfg.dim
    embedding = self.param("embedding", _INIT, (cfg.vocab_size, width), dtype)
    x = products.columns(products.lookup(embedding, tokens))
    if cfg.embedding_dim:
      x = Linear(cfg.dim, False, dtype, name="project_in")(x)
    if cfg.positions == "learned":
      table = self.param("positions", _INIT, (cfg.max_length, cfg.dim), dtype)
      x += products.columns(products.lookup(table, positions))
    angles = rope.angles(cfg, positions) if cfg.positions == "rope" else None
    x, block = _layers(cfg)(x, cache, block, angles, slot,
                            _masks(cfg, cache, positions, mask))
    if not cfg.post_norm:
      x = _NORMS[cfg.norm](cfg, name="norm")(x)
    if cfg.embedding_dim:
      x = Linear(width, False, dtype, name="project_out")(x)
    head = embedding if cfg.tie_embeddings else self.param(
        "head", _INIT, (cfg.outputs or cfg.vocab_size, width), dtype)
    logits = products.matmul(head, x)
    # Without the barrier the transposition changes the layout of the whole
    # program on a CPU, which then runs several times slower.
    logits = jax.lax.optimization_barrier(logits).T
    return logits.reshape(*tokens.shape, len(head)), block


class Unrolled(nn.Module):
  """The layers, one after the other in the program."""
  config: Config

  @nn.compact
  def __call__(self, x, cache, block, angles, slot, masks):
    keys, values = [], []
    kv = zip(cache.keys, cache.values, block.keys, block.values)
    for i, layer_kv in enumerate(kv):
      x, (k, v) = Layer(self.config, name=f"layer_{i}")(
          x, layer_kv, angles, slot, masks)
      keys.append(k)
      values.append(v)
    return x, types.Block(tuple(keys), tuple(values))


class Scanned(nn.Module):
  """The layers as one scan; parameters, cache and block have a layer axis."""
  config: Config

  @nn.compact
  def __call__(self, x, cache, block, angles, slot, masks):
    scan = nn.scan(
        Layer, variable_axes={"params": 0}, split_rngs={"params": True},
        in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast),
        length=self.config.num_layers)
    kv = (cache.keys[0], cache.values[0], block.keys[0], block.values[0])
    x, (keys, values) = scan(self.config, name="layer")(
        x, kv, angles, slot, masks)
    return x, types.Block((keys,), (values,))


_INIT = nn.initializers.normal(0.02)
_NORMS = {"rms": RMSNorm, "layer": LayerNorm}
_FEED_FORWARDS = {"swiglu": SwiGLU, "relu": ReLU}
_POSITIONS = ("rope", "learned")
_DTYPES = ("float32", "bfloat16", "float16")


@functools.lru_cache(maxsize=None)
def language_model(config: Config) -> types.LanguageModel:
  """The decoder as pure functions; equal configs give the same object.

  Args:
    config: the architecture.

  Returns:
    A `LanguageModel`; its parameters are the "params" collection of `Decoder`,
    from `init` or `checkpoints`.
  """
  decoder = Decoder(config)

  def init_cache(batch, capacity):
    heads, dim = config.num_kv_heads, config.head_dim
    layers = (config.num_layers,) if config.scan_layers else ()
    copies = 1 if config.scan_layers else config.num_layers
    dtype = jnp.dtype(config.dtype)
    key = jnp.zeros((*layers, batch, heads, dim, capacity), dtype)
    value = jnp.zeros((*layers, batch, heads, capacity, dim), dtype)
    return types.Cache((key,) * copies, (value,) * copies,
                       jnp.zeros(batch, jnp.int32))

  def forward(params, tokens, positions, cache, block, slot, mask):
    return decoder.apply({"params": params}, tokens, positions, cache, block,
                         slot, mask)

  return types.LanguageModel(init_cache, forward, config.vocab_size,
                             config.max_length)


def causal_logits(lm, params, tokens):
  """Logits of a whole text at once: no cache, one block, a causal mask.

  Args:
    lm: of `language_model`, or any other.
    params: its parameters.
    tokens: `[B, T]` int32.

  Returns:
    `[B, T, V]`.
  """
  batch, length = tokens.shape
  fresh = lm.init_cache(batch, length)
  mask = jnp.tril(jnp.ones((length, length), bool))
  logits, _ = lm.forward(
      params, tokens, jnp.broadcast_to(jnp.arange(length), tokens.shape),
      lm.init_cache(batch, 0), types.Block(fresh.keys, fresh.values), 0,
      jnp.broadcast_to(mask, (batch, length, length)))
  return logits


def init(key, config: Config) -> types.Params:
  """Random parameters.

  Args:
    key: a random key.
    config: the architecture.

  Returns:
    The "params" collection of `Decoder`.
  """
  # Of what goes through the layers the shapes are enough: nothing is computed,
  # nor compiled, but the parameters.
  tokens, mask = (jax.ShapeDtypeStruct((1, 1), jnp.int32),
                  jax.ShapeDtypeStruct((1, 1, 1), bool))
  cache = jax.eval_shape(lambda: language_model(config).init_cache(1, 1))
  block = types.Block(cache.keys, cache.values)
  return Decoder(config).lazy_init(key, tokens, tokens, cache, block, 0,
                                   mask)["params"]


def abstract_params(config: Config) -> types.Params:
  """The parameters of `init` as `jax.ShapeDtypeStruct`."""
  return jax.eval_shape(lambda key: init(key, config), jax.random.key(0))


def param_name(path) -> str:
  """The name of a parameter, such as "layers/layer_0/attention/key/kernel".

  Args:
    path: of a leaf, as the functions of `jax.tree_util` give it.

  Returns:
    Its keys with slashes between.
  """
  return jax.tree_util.keystr(path, simple=True, separator="/")


def num_params(params: types.Params) -> int:
  """Number of scalars in a tree of parameters."""
  return sum(x.size for x in jax.tree.leaves(params))


def _linear(config, bias):
  return functools.partial(Linear, bias=config.bias or bias,
                           dtype=jnp.dtype(config.dtype))


def _layers(config):
  return (Scanned if config.scan_layers else Unrolled)(config, name="layers")


def _masks(config, cache, positions, mask):
  """What each fresh token attends to.

  Args:
    config: the architecture.
    cache: the committed prefix.
    positions: `[B, T]`.
    mask: `[B, T, N]`, itself and its ancestors in the block.

  Returns:
    Masks `[B, 1 or T, S]` of the cache and `[B, T, N]` of the block.
  """
  slots = jnp.arange(cache.keys[0].shape[-1])
  prefix = slots < cache.length[:, None, None]
  if not config.window:
    return prefix, mask
  prefix &= slots > positions[:, :, None] - config.window
  if mask.shape[-1] > config.window:
    # The positions of the block's older tokens are not given; but ancestors
    # have one position each and stand in order, so that counting those between
    # a token and its ancestor tells how far back it is.
    behind = jnp.cumsum(mask[..., ::-1], axis=-1)[..., ::-1] - mask
    mask &= behind < config.window
  return prefix, mask


def _write(block, fresh, slot, axis):
  return jax.lax.dynamic_update_slice_in_dim(
      block, fresh.astype(block.dtype), slot, axis)
