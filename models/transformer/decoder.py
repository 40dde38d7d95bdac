"""One decoder for several families of published models.

Llama: RMSNorm, rotary positions, grouped-query attention, gated SiLU. Mistral
adds a sliding window, Qwen2 biases of query, key and value, Qwen3 norms of
query and key, SmolLM3 layers without positions, Granite scaling factors. OLMo 2
has its norms after attention and feed-forward layer, OLMo 3 windows in most
layers as well. Phi-3 is a Llama with other tensor names. Mixtral, Qwen3-MoE and
OLMoE have mixtures of experts, Qwen2-MoE a shared expert too.
Gemma: scaled embeddings, norms that multiply by one plus their scale, gated
GELU. Gemma 2 adds norms after the layers, soft caps of scores and logits, and
windows in every other layer; Gemma 3 has the norms of Qwen3, and other rotary
bases for layers with a window than for those without.
OPT: LayerNorm, learned positions, biases, ReLU; one size has its norms after
the layers, and projections around them. GPT-2: the same with GELU. StarCoder2:
the same with rotary positions. GPT-NeoX: rotary positions for a part of the
channels, attention and feed-forward layer in parallel.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax import types
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization
from models.transformer import rope
from models.transformer import views as views_lib


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
    hidden_dim: width of the feed-forward layer, or of an expert.
    num_experts: experts of a mixture; 0: one feed-forward layer for all tokens.
      A mixture cannot be trained here.
    experts_per_token: how many experts a token uses.
    normalize_experts: whether their weights are normalised to sum to one.
    shared_dim: width of an expert that all tokens use, scaled by a gate of its
      own; 0: there is none.
    max_length: positions; the size of the table if they are learned.
    norm: "rms", "rms_plus_one" (scales are stored less one) or "layer".
    positions: "rope" or "learned".
    feed_forward: "swiglu" or "geglu", which are gated; "relu"; "gelu" (its tanh
      approximation, as in "geglu") or "erf_gelu" (exact).
    bias: whether all projections have biases; else the next three decide.
    qkv_bias: whether query, key and value have biases.
    out_bias: whether the output projection of the attention has one.
    feed_forward_bias: whether the feed-forward layer has biases.
    tie_embeddings: whether the output layer is the embedding.
    outputs: outputs of each token, such as 1 of a reward model; 0: V logits.
    norm_eps: added to the variance.
    qk_norm: whether each query head and each key head is normalised.
    joint_qk_norm: whether all query heads together are, and all key heads.
    post_norm: norms after the residual sums, and none before the output layer.
    sandwich_norm: norms before attention and feed-forward layer, and of their
      outputs before the residual sum.
    reordered_norm: norms of the outputs alone (OLMo 2, arXiv 2501.00656,
      section 3.2).
    parallel: whether attention and feed-forward layer read the same residual
      stream, each by its own norm.
    residual_scale: what their outputs are multiplied by before the sum.
    embedding_dim: width of embedding and output layer, if projections lie
      between them and the residual stream; 0: `dim`, without projections.
    embedding_scale: what embeddings are multiplied by, rounded to the type.
    logit_divisor: what logits are divided by.
    query_scalar: scores are divided by its square root; 0: by that of
      `head_dim`.
    attention_softcap: cap of the scores, see `kernels.soft_cap`; 0: none.
    logit_softcap: cap of the logits; 0: none.
    window: positions that a token attends to, itself included; 0: all. Caches
      hold the others too.
    full_every: every so many layers, the last one attends to all positions in
      spite of the window; 0: none does.
    rope_full: whether queries and keys of these layers are rotated.
    rope_part: share of the channels of a head that are rotated, the first ones.
    rope_theta: base of the rotary wavelengths.
    rope_local_theta: base in layers with a window, which are then not scaled;
      0: `rope_theta`.
    rope_scaling: one of `rope.KINDS`, see `rope.frequencies`.
    rope_factor: factor of the scaling; of "longrope" the longest text in
      original lengths, as in files of Hugging Face.
    rope_low_turns, rope_high_turns: ends of the ramp of "llama3" and "yarn".
    rope_original_length: of "llama3", "yarn" and "longrope", the length before
      it was scaled.
    rope_gain: of "yarn" and "longrope", what cosines and sines are multiplied
      by.
    rope_truncate: whether the ramp of "yarn" begins and ends at whole planes.
    rope_short_factors, rope_long_factors: of "longrope", tuples of the factor
      of each plane; `max_length` decides which of them are used.
    scan_layers: one scanned layer instead of unrolled ones: compiles in
      constant time, at the price of a copied slice of the cache in each layer.
    dtype: of parameters, activations and caches.
    weights: "dtype"; or "bfloat16" or "int8" for the matrices of layers, the
      embedding and the output layer, see `quantization`. Such a model cannot be
      trained.
  """
  vocab_size: int
  dim: int
  num_layers: int
  num_heads: int
  num_kv_heads: int
  head_dim: int
  hidden_dim: int
  max_length: int
  num_experts: int = 0
  experts_per_token: int = 0
  normalize_experts: bool = True
  shared_dim: int = 0
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
  joint_qk_norm: bool = False
  post_norm: bool = False
  sandwich_norm: bool = False
  reordered_norm: bool = False
  parallel: bool = False
  residual_scale: float = 1.0
  embedding_dim: int = 0
  embedding_scale: float = 1.0
  logit_divisor: float = 1.0
  query_scalar: float = 0
  attention_softcap: float = 0.0
  logit_softcap: float = 0.0
  window: int = 0
  full_every: int = 0
  rope_full: bool = True
  rope_part: float = 1.0
  rope_theta: float = 10000.0
  rope_local_theta: float = 0.0
  rope_scaling: str = "none"
  rope_factor: float = 1.0
  rope_low_turns: float = 1.0
  rope_high_turns: float = 4.0
  rope_original_length: float = 0.0
  rope_gain: float = 1.0
  rope_truncate: bool = True
  rope_short_factors: tuple[float, ...] = ()
  rope_long_factors: tuple[float, ...] = ()
  scan_layers: bool = False
  dtype: str = "float32"
  weights: str = quantization.DTYPE

  def __post_init__(self):
    for field, allowed in (("norm", layers.NORMS), ("positions", _POSITIONS),
                           ("feed_forward", layers.FEED_FORWARDS),
                           ("rope_scaling", rope.KINDS),
                           ("dtype", DTYPES),
                           ("weights", quantization.WEIGHTS)):
      if getattr(self, field) not in allowed:
        raise ValueError(
            f"transformer {field}={getattr(self, field)!r} is not one of "
            f"{sorted(allowed)}.")
    if self.num_heads % self.num_kv_heads:
      raise ValueError(
          f"transformer num_kv_heads={self.num_kv_heads} does not divide "
          f"num_heads={self.num_heads}.")
    if self.num_experts and not (
        0 < self.experts_per_token <= self.num_experts
        and layers.FEED_FORWARDS[self.feed_forward][1]):
      raise ValueError(
          f"transformer experts_per_token={self.experts_per_token}, "
          f"feed_forward={self.feed_forward!r}: 1 to "
          f"num_experts={self.num_experts} of a gated layer are needed.")
    if self.shared_dim and not self.num_experts:
      raise ValueError(f"transformer shared_dim={self.shared_dim} needs "
                       "num_experts.")
    if self.outputs and self.tie_embeddings:
      raise ValueError(f"transformer outputs={self.outputs} needs "
                       "tie_embeddings=False.")
    if self.weights == quantization.BFLOAT16 and self.dtype == "float16":
      raise ValueError(
          f"transformer weights={self.weights!r}, dtype={self.dtype!r}: "
          "float32 or bfloat16 is needed.")
    if self.outputs and self.weights != quantization.DTYPE:
      raise ValueError(
          f"transformer weights={self.weights!r}, outputs={self.outputs}: a "
          f"model without logits needs {quantization.DTYPE!r}.")
    for names in (("post_norm", "sandwich_norm", "reordered_norm"),
                  ("post_norm", "parallel"), ("qk_norm", "joint_qk_norm")):
      given = [f"{name}=True" for name in names if getattr(self, name)]
      if len(given) > 1:
        raise ValueError(f"transformer {' and '.join(given)}: only one of them "
                         "is allowed.")
    turned = self.rope_part * self.head_dim
    if self.positions == "rope" and not 2 <= turned <= self.head_dim:
      raise ValueError(
          f"transformer rope_part={self.rope_part}: of head_dim="
          f"{self.head_dim} channels 2 to {self.head_dim} can be rotated.")
    rope.check(self)


class Decoder(nn.Module):
  """Token and position embedding, layers, output layer.

  Attributes:
    config: the architecture.
    kept: layers whose outputs the block keeps as features.
    stack: module of the layers; None for the usual one.
    prompts: trained embeddings of prompt tokens, -1, -2, ...
  """
  config: Config
  kept: tuple[int, ...] = ()
  stack: Any = None
  prompts: int = 0

  @nn.compact
  def __call__(self, tokens, positions, cache, block, slot, mask):
    """See `types.LanguageModel.forward`."""
    cfg = self.config
    dtype = jnp.dtype(cfg.dtype)
    width = cfg.embedding_dim or cfg.dim
    matrix = quantization.initializer(layers.INIT, cfg.weights)
    embedding = self.param("embedding", matrix, (cfg.vocab_size, width), dtype)
    x = linear_ops.lookup(embedding, jnp.maximum(
        tokens, 0) if self.prompts else tokens).astype(dtype)
    if self.prompts:
      own = self.param("prompts", layers.INIT, (self.prompts, width), dtype)
      x = jnp.where((tokens < 0)[:, :, None], own[jnp.clip(
          -1 - tokens, 0, self.prompts - 1)], x)
    if cfg.embedding_scale != 1:
      x *= jnp.asarray(cfg.embedding_scale, dtype)
    if cfg.embedding_dim:
      x = layers.Linear(cfg.dim, False, dtype, name="project_in")(x)
    if cfg.positions == "learned":
      table = self.param("positions", layers.INIT, (cfg.max_length, cfg.dim),
                         dtype)
      x += linear_ops.lookup(table, positions)
    views = views_lib.of(cfg, cache, positions, mask)
    stack = self.stack or (Scanned if cfg.scan_layers else Unrolled)
    old = block.features
    x, block, outputs = stack(cfg, self.kept, name="layers")(
        x, cache, block, slot, views)
    block = block.replace(features=tuple(
        jax.lax.dynamic_update_slice_in_dim(kept, fresh, slot, 1)
        for kept, fresh in zip(old, outputs)))
    if not cfg.post_norm:
      x = layers.NORMS[cfg.norm](cfg, name="norm")(x)
    if cfg.embedding_dim:
      x = layers.Linear(width, False, dtype, name="project_out")(x)
    head = embedding if cfg.tie_embeddings else self.param(
        "head", matrix, (cfg.outputs or cfg.vocab_size, width), dtype)
    logits = linear_ops.matmul(x, head)
    if cfg.logit_divisor != 1:
      logits /= cfg.logit_divisor
    return kernels.soft_cap(logits, cfg.logit_softcap), block


class Unrolled(nn.Module):
  """The layers, one after the other in the program."""
  config: Config
  kept: tuple[int, ...] = ()

  @nn.compact
  def __call__(self, x, cache, block, slot, views):
    keys, values, outputs = [], [], []
    kv = zip(cache.keys, cache.values, block.keys, block.values)
    narrow_ones = views_lib.narrow(self.config)
    for i, (layer_kv, narrow) in enumerate(zip(kv, narrow_ones)):
      # With one view it is both the first and the last.
      arguments = x, layer_kv, None, slot, (views[-1 if narrow else 0],)
      name = f"layer_{i}"
      if self.is_initializing():
        x, (k, v) = layers.Layer(self.config, name=name)(*arguments)
      else:
        x, (k, v) = _traced_once(self.config)(
            self.variables["params"][name], *arguments)
      keys.append(k)
      values.append(v)
      outputs.append(x)
    return x, types.Block(tuple(keys), tuple(values)), [
        outputs[i] for i in self.kept]


class _KeptLayer(layers.Layer):
  """A layer that also gives its output to a scan."""

  def __call__(self, x, kv, narrow, slot, views):
    x, kv = super().__call__(x, kv, narrow, slot, views)
    return x, (kv, x)


class Scanned(nn.Module):
  """The layers as a scan; parameters, cache and block have a layer axis."""
  config: Config
  kept: tuple[int, ...] = ()

  @nn.compact
  def __call__(self, x, cache, block, slot, views):
    scan = nn.scan(
        _KeptLayer if self.kept else layers.Layer, variable_axes={"params": 0},
        split_rngs={"params": True}, in_axes=(0, 0, nn.broadcast, nn.broadcast),
        length=self.config.num_layers)
    kv = (cache.keys[0], cache.values[0], block.keys[0], block.values[0])
    narrow = jnp.array(views_lib.narrow(self.config)) if (
        len(views) > 1) else None
    x, found = scan(self.config, name="layer")(x, kv, narrow, slot, views)
    (keys, values), outputs = found if self.kept else (found, None)
    return x, types.Block((keys,), (values,)), [outputs[i] for i in self.kept]


_POSITIONS = ("rope", "learned")
DTYPES = ("float32", "bfloat16", "float16")


def language_model(config: Config) -> types.LanguageModel:
  """Returns the decoder as pure functions; equal configs give the same object.

  Args:
    config: the architecture.

  Returns:
    A `LanguageModel`; its parameters are the "params" collection of `Decoder`,
    from `init` or `checkpoints`.
  """
  return of_stack(config, ())


def with_features(config: Config, kept: tuple[int, ...]) -> types.LanguageModel:
  """Returns the decoder, which keeps outputs of some of its layers.

  They are `Cache.features` and `Block.features`, `[B, S or N, dim]` for each of
  these layers: the residual stream after it, before any norm of the output
  layer. Drafters read them in `state.target_cache` and `seen.block`.

  Args:
    config: the architecture.
    kept: numbers of layers, from 0 on.

  Returns:
    A `LanguageModel` with the parameters of `language_model`; equal arguments
    give the same object.

  Raises:
    ValueError: for a layer that there is not, or none.
  """
  kept = tuple(kept)
  if not kept or any(i not in range(config.num_layers) for i in kept):
    raise ValueError(f"kept={kept}: some of the layers 0 to "
                     f"{config.num_layers - 1} are needed.")
  return of_stack(config, kept)


def with_prompts(config: Config, prompts: int) -> types.LanguageModel:
  """Returns the decoder with trained prompt tokens beside its vocabulary.

  The tokens -1, -2, ... have embeddings of their own, as in parallel prompt
  decoding (arXiv 2405.18628, section 3.1); `methods.ppd` has them scored.

  Args:
    config: the architecture.
    prompts: how many there are.

  Returns:
    A `LanguageModel` whose parameters are those of `language_model` with
    `prompts [prompts, F]`; equal arguments give the same object.

  Raises:
    ValueError: for a number that is not positive.
  """
  if prompts < 1:
    raise ValueError(f"prompts={prompts}: at least 1 is needed.")
  return of_stack(config, (), prompts=prompts)


@functools.lru_cache(maxsize=None)
def of_stack(config: Config, kept: tuple[int, ...], stack=None,
             prompts: int = 0) -> types.LanguageModel:
  """Returns the decoder with layers that a module of its own runs.

  Args:
    config: the architecture.
    kept: layers whose outputs are features.
    stack: as of `Decoder`.
    prompts: as of `Decoder`.
  """
  decoder = Decoder(config, kept, stack, prompts)

  def init_cache(batch, capacity):
    heads, dim = config.num_kv_heads, config.head_dim
    axes = (config.num_layers,) if config.scan_layers else ()
    copies = 1 if config.scan_layers else config.num_layers
    dtype = jnp.dtype(config.dtype)
    key = jnp.zeros((*axes, batch, heads, dim, capacity), dtype)
    value = jnp.zeros((*axes, batch, heads, capacity, dim), dtype)
    return types.Cache((key,) * copies, (value,) * copies,
                       jnp.zeros(batch, jnp.int32),
                       (jnp.zeros((batch, capacity, config.dim), dtype),) * len(
                           kept))

  def forward(params, tokens, positions, cache, block, slot, mask):
    return decoder.apply({"params": params}, tokens, positions, cache, block,
                         slot, mask)

  return types.LanguageModel(
      init_cache, forward, config.vocab_size, config.max_length,
      abstract_params=functools.partial(_abstract, config, prompts),
      early_logits=functools.partial(_early_logits, config, prompts))


def _early_logits(config, prompts, num_layers, params, tokens, positions,
                  cache, mask):
  """As `LanguageModel.early_logits`; of all layers where there are no more."""
  count = min(num_layers, config.num_layers)
  keys, values = cache.keys[:count], cache.values[:count]
  if config.scan_layers:
    # Copies, which unrolled layers do without.
    params = {**params, "layers": jax.tree.map(lambda x: x[:count],
                                               params["layers"])}
    keys, values = (jax.tree.map(lambda x: x[:count], y)
                    for y in (cache.keys, cache.values))
  lm = of_stack(dataclasses.replace(config, num_layers=count), (),
                prompts=prompts)
  fresh = lm.init_cache(*tokens.shape)
  return lm.forward(params, tokens, positions,
                    types.Cache(keys, values, cache.length),
                    types.Block(fresh.keys, fresh.values), 0, mask)[0]


def causal_logits(lm, params, tokens):
  """Returns logits of a whole text: no cache, one block, a causal mask.

  Args:
    lm: of `language_model`, or any other.
    params: its parameters.
    tokens: `[B, T]` int32.

  Returns:
    `[B, T, V]`.
  """
  length = tokens.shape[1]
  return _whole_logits(lm, params, tokens,
                       jnp.tril(jnp.ones((length, length), bool)))


def bidirectional_logits(lm, params, tokens):
  """Returns logits of a whole text whose tokens all see each other.

  Args:
    lm: of `language_model`, trained so.
    params: its parameters.
    tokens: `[B, T]` int32.

  Returns:
    `[B, T, V]`, of the tokens themselves, not of those after them.
  """
  length = tokens.shape[1]
  return _whole_logits(lm, params, tokens, jnp.ones((length, length), bool))


def _whole_logits(lm, params, tokens, mask):
  batch, length = tokens.shape
  fresh = lm.init_cache(batch, length)
  logits, _ = lm.forward(
      params, tokens, jnp.broadcast_to(jnp.arange(length), tokens.shape),
      lm.init_cache(batch, 0), types.Block(
          fresh.keys, fresh.values, fresh.features), 0,
      jnp.broadcast_to(mask, (batch, length, length)))
  return logits


def init(key, config: Config) -> types.Params:
  """Returns random parameters.

  Args:
    key: a random key.
    config: the architecture.

  Returns:
    The "params" collection of `Decoder`.
  """
  kernels.prepare()  # Before anything is traced that may call them.
  # Shapes of activations are enough: only parameters are computed.
  tokens, cache, block, mask = _one_token(config)
  return Decoder(config).lazy_init(key, tokens, tokens, cache, block, 0,
                                   mask)["params"]


def abstract_params(config: Config) -> types.Params:
  """Returns the parameters of `init` as `jax.ShapeDtypeStruct`."""
  return jax.tree.map(lambda leaf: leaf, _abstract_params(config))


@functools.lru_cache(maxsize=64)
def _abstract_params(config):
  """`abstract_params`, which nobody may change.

  Tracing layers takes seconds, and what reads a folder asks several times.
  """
  kernels.prepare()
  tokens, cache, block, mask = _one_token(config)

  def init_params(key, tokens, cache, block, mask):
    # Not by `lazy_init`: it would take a trace apart in three times as long.
    return Decoder(config).init(key, tokens, tokens, cache, block, 0,
                                mask)["params"]

  return jax.eval_shape(init_params, jax.random.key(0), tokens, cache, block,
                        mask)


def _one_token(config):
  """Returns the shapes of a token, an empty cache, its block and a mask."""
  tokens, mask = (jax.ShapeDtypeStruct((1, 1), jnp.int32),
                  jax.ShapeDtypeStruct((1, 1, 1), bool))
  cache = jax.eval_shape(lambda: language_model(config).init_cache(1, 1))
  return tokens, cache, types.Block(cache.keys, cache.values), mask


def _abstract(config, prompts):
  """Returns the parameters of a decoder with prompt tokens, as shapes."""
  found = abstract_params(config)
  if prompts:
    width = config.embedding_dim or config.dim
    found["prompts"] = jax.ShapeDtypeStruct((prompts, width),
                                            jnp.dtype(config.dtype))
  return found


def param_name(path) -> str:
  """Returns a parameter's name, as "layers/layer_0/attention/key/kernel".

  Args:
    path: of a leaf, as the functions of `jax.tree_util` give it.

  Returns:
    Its keys, joined by slashes.
  """
  return jax.tree_util.keystr(path, simple=True, separator="/")


def num_params(params: types.Params) -> int:
  """Returns the number of scalars in parameters, scales of int8 left out."""
  values = jax.tree.map(lambda x: x.values if quantization.is_matrix(x) else x,
                        params, is_leaf=quantization.is_matrix)
  return sum(x.size for x in jax.tree.leaves(values))


@functools.lru_cache(maxsize=None)
def _traced_once(config):
  """Returns a layer as a function, traced once for all layers of its shape."""
  def layer(params, *arguments):
    module = layers.Layer(config, parent=None)
    return module.apply({"params": params}, *arguments)

  return jax.jit(layer)
