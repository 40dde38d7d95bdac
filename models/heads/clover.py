"""Clover (arXiv 2405.00263) and Clover-2 (2408.00264): a light recurrence.

The augmenting block, a few decoder layers, reads the target's last hidden
states once a step. Each drafted token then updates a state (the regressive
connection): attention with the state as query and the token's embedding as only
key adds each head's value times the cosine of both. Logits are the target's
output layer on the state, so a tree level costs a few products and no layer.

Clover-2 reads the root before the augmenting block, and projects state and
embedding before the output layer (its section 3). There is no public code of
Clover. The format was read in XiaoBin1992/clover@9d37214a
(clover/model/clover2.py).
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax.types import Head
from models.heads.parts import cells
from models.heads.parts import formats
from models.heads.parts import prefix_layers
from models.heads.parts import target_ends
from models.heads.parts import training
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization

VERSIONS = (1, 2)
# Clover-2 rotates by this base, whatever its config says.
_THETA = 1e4


@dataclasses.dataclass(frozen=True)
class Config:
  """The architecture of the head."""
  # A `transformer.Config` with the sizes of the augmenting block; its
  # `num_heads` and `norm_eps` hold for the attention decoder too, its
  # vocabulary is not used
  layers: Any
  version: int = 2  # 1, of Clover, or 2
  # Whether it has an embedding of its own; else it reads the rows of the
  # target's output layer, which is what published ones begin with
  own_embedding: bool = False

  def __post_init__(self):
    if self.version not in VERSIONS:
      raise ValueError(f"clover version={self.version}: one of {VERSIONS} is "
                       "needed.")
    if self.layers.dim % self.layers.num_heads:
      raise ValueError(f"clover layers: num_heads={self.layers.num_heads} does "
                       f"not divide dim={self.layers.dim}.")


class _Connection(nn.Module):
  """The attention decoder: `[..., F]` and an embedding to the next state."""
  config: Any

  @nn.compact
  def __call__(self, x, embedding):
    cfg = self.config
    linear = _linear(cfg)
    query = linear(name="query")(layers.NORMS[cfg.norm](cfg, name="norm")(x))
    key, value = layers.project([linear(name="key"), linear(name="value")],
                                embedding)
    query, key, value = (
        y.reshape(*y.shape[:-1], cfg.num_heads, -1).astype(jnp.float32)
        for y in (query, key, value))
    scaled = value * _cosine(query, key, cfg.norm_eps)
    return x + scaled.reshape(x.shape).astype(x.dtype)


class _Clover(nn.Module):
  """The parts before and after the augmenting block."""
  config: Config

  def setup(self):
    cfg = self.config.layers
    self.following, self.head_norm = _Connection(cfg), layers.NORMS[cfg.norm](
        cfg)
    if self.config.version == 2:
      self.first = _Connection(cfg)
      self.first_out, self.following_out = _linear(cfg)(), _linear(cfg)()

  def read(self, features, embeddings):
    """Returns what the augmenting block reads, `[..., F]`."""
    return (features if self.config.version == 1
            else self.first(features, embeddings))

  def root(self, hidden, embeddings):
    """Returns the state of roots, and what their logits are of."""
    if self.config.version == 1:
      return self.node(hidden, embeddings)
    return hidden, self.head_norm(self.first_out(hidden))

  def node(self, above, embeddings):
    """Returns the state of nodes below the root, and what logits are of."""
    hidden = out = self.following(above, embeddings)
    if self.config.version == 2:
      out = self.following_out(jnp.concatenate([hidden, embeddings], axis=-1))
    return hidden, self.head_norm(out)

  def __call__(self, x):
    """Goes everywhere, to make all parameters."""
    return self.root(self.read(x, x), x), self.node(x, x)


@functools.lru_cache(maxsize=None)
def head(config: Config, target) -> Head:
  """Returns a Clover head on a target that keeps its last layer's output."""
  prefix_layers.check(config.layers, target)
  return cells.head(_CELL, config, target, init, config.layers.max_length)


def _read(spec, params, target_params, features, embeddings):
  del target_params
  return _apply(spec, params, "read",
                features[0].astype(spec.config.layers.dtype), embeddings)


def _node(spec, params, above, embeddings, is_root):
  return _apply(spec, params, "root" if is_root else "node", above, embeddings)


def _embed(spec, params, target_params, tokens):
  if not spec.config.own_embedding:
    return target_ends.output_rows(spec.target, target_params, tokens)
  return linear_ops.lookup(params["embedding"], tokens).astype(
      spec.config.layers.dtype)


def _apply(spec, params, method, *args):
  return _Clover(spec.config).apply({"params": params["recurrence"]}, *args,
                                    method=method)


_CELL = cells.Cell(_node, _read, _embed, lambda spec: spec.config.layers)


def _cosine(x, y, eps):
  """Returns the cosines `[..., 1]` of `[..., C]`."""
  inverse = lambda z: jax.lax.rsqrt(jnp.maximum(
      (z * z).sum(axis=-1, keepdims=True), eps * eps))
  return (x * y).sum(axis=-1, keepdims=True) * inverse(x) * inverse(y)


def _linear(config):
  return functools.partial(layers.Linear, config.dim, True,
                           jnp.dtype(config.dtype), weights=config.weights)


def init(key, config: Config, target):
  """Returns random parameters: `recurrence`, `augment`, own `embedding`."""
  cfg = config.layers
  keys = jax.random.split(key, 3)
  x = jax.ShapeDtypeStruct((1, cfg.dim), jnp.dtype(cfg.dtype))
  params = {"recurrence": _Clover(config).lazy_init(keys[0], x)["params"],
            "augment": prefix_layers.init(keys[1], cfg)}
  if config.own_embedding:
    params["embedding"] = quantization.initializer(layers.INIT, cfg.weights)(
        keys[2], (target.vocab_size, cfg.dim), jnp.dtype(cfg.dtype))
  return params


def _config(folder):
  more = folder.fields["clover"]
  if "num_layers" not in more:
    raise ValueError(f"'{folder.path}': no field 'num_layers' of clover.")
  layers_ = folder.layers({
      **folder.fields, "num_hidden_layers": more["num_layers"],
      "rope_theta": more.get("rope_theta", _THETA)})
  return Config(layers_, more.get("version", 2), formats.has_rows(
      folder, "clover_embed_tokens.weight")), formats.last(folder.target)


def _names(config, _):
  names = {"embedding": "clover_embed_tokens.weight",
           "augment/norm/scale": "clover_norm.weight",
           "recurrence/head_norm/scale": "clover_head_norm.weight",
           **formats.linear("recurrence/first_out", "clover_head_mlp"),
           **formats.linear("recurrence/following_out", "clover_head_mlp2")}
  for ours, theirs in (("first", "rnn"), ("following", "rnn2")):
    ours, theirs = f"recurrence/{ours}", f"clover_head_mlp_{theirs}"
    names[f"{ours}/norm/scale"] = f"{theirs}.input_layernorm.weight"
    for part in ("query", "key", "value"):
      names |= formats.linear(f"{ours}/{part}", f"{theirs}.{part[0]}")
  for i in range(config.layers.num_layers):
    names |= formats.layer_names(f"augment/layers/layer_{i}", f"layers.{i}")
  return names


def _fields(config, _, dtype):
  layers_ = config.layers
  return formats.layer_fields(layers_, dtype) | {
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "clover": {
          "num_layers": layers_.num_layers, "version": config.version,
          "rope_theta": layers_.rope_theta}}


FORMAT = formats.Format(
    _config, _names, _fields, "clover", known={"clover": {
        "num_layers": formats.COUNT, "version": formats.COUNT,
        "rope_theta": formats.Field(float, 1, 1e12)}})


def _kind(version, num_layers):
  return training.Kind(
      lambda target, depth: Config(
          formats.layer_of(target, num_layers), version),
      training.of_pairs(functools.partial(cells.rounds, _CELL)),
      feature_weight=10)


KINDS = {"clover": _kind(2, 2), "clover1": _kind(1, 1)}
