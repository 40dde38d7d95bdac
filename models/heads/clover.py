"""Clover (arXiv 2405.00263) and Clover-2 (2408.00264): a light recurrence.

A few decoder layers, the augmenting block, read the target's last hidden states
once a step. Then each drafted token changes a state (the regressive
connection): in the attention decoder the state is the query and the token's
embedding the only key, so that each head adds its value times the cosine of
query and key. Logits are the target's output layer on the state. A level of a
tree costs a few products, and no layer.

Clover-2 reads the root before the augmenting block, not after it, and adds a
projection of state and embedding before the output layer: its section 3 names
both as changes to Clover, of which there is no public code. The format was read
in XiaoBin1992/clover@9d37214a (clover/model/clover2.py).
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.types import Array, Cache, Head
from models.heads import assembly
from models.heads import prefix_layers
from models.heads import target_ends
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization

VERSIONS = (1, 2)


@dataclasses.dataclass(frozen=True)
class Config:
  """The architecture of the head.

  Attributes:
    layers: a `transformer.Config` with the sizes of the augmenting block; its
      `num_heads` and `norm_eps` are those of the attention decoder too, its
      vocabulary is not used.
    version: 1, of Clover, or 2.
    own_embedding: whether it has an embedding of its own; else it reads the
      rows of the target's output layer, which is what published ones begin
      with.
  """
  layers: Any
  version: int = 2
  own_embedding: bool = False

  def __post_init__(self):
    if self.version not in VERSIONS:
      raise ValueError(f"clover version={self.version}: one of {VERSIONS} is "
                       "needed.")
    if self.layers.dim % self.layers.num_heads:
      raise ValueError(f"clover layers: num_heads={self.layers.num_heads} does "
                       f"not divide dim={self.layers.dim}.")


@flax.struct.dataclass
class _State:
  """What has been read.

  Attributes:
    cache: of the augmenting block, a slot a pair.
    hidden: `[B, F]`, what it made of the last pair.
  """
  cache: Cache
  hidden: Array


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
  """What comes before and after the augmenting block."""
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
  target_ends.check(target)
  prefix_layers.check(config.layers, target)
  return assembly.head(
      assembly.Spec(config, target), (_init, _read, _start, _logits),
      lambda key: init(key, config, target), lambda depth: 1,
      max_length=config.layers.max_length)


def rounds(config: Config, target, params, target_params, features, tokens,
           depth: int):
  """Returns what the head predicts after the right tokens, for training.

  Returns:
    `[B, depth, T, V]` logits of the token after `tokens`, and `[B, depth, T,
    F]` that they are of, which stand for the target's normed hidden states;
    those of pair t of level i are meant only for t >= i.
  """
  spec, cfg = assembly.Spec(config, target), config.layers
  embeddings = _embed(spec, params, target_params, tokens)
  x = _apply(spec, params, "read", features[0].astype(cfg.dtype), embeddings)
  x, _ = prefix_layers.forward(cfg, params["augment"], x,
                               prefix_layers.empty_cache(cfg, len(x), 0))
  hidden, out = _apply(spec, params, "root", x, embeddings)
  found = [out]
  for _ in range(depth - 1):
    hidden = jnp.pad(hidden[:, :-1], ((0, 0), (1, 0), (0, 0)))
    hidden, out = _apply(spec, params, "node", hidden, embeddings)
    found.append(out)
  made = jnp.stack(found, axis=1)
  return target_ends.logits(target, target_params, made), made


def _init(spec, batch, slots):
  cfg = spec.config.layers
  return _State(prefix_layers.empty_cache(cfg, batch, slots),
                jnp.zeros((batch, cfg.dim), cfg.dtype))


def _read(spec, params, target_params, state, features, tokens, count):
  cfg = spec.config.layers
  x = _apply(spec, params, "read", features[0].astype(cfg.dtype),
             _embed(spec, params, target_params, tokens))
  x, cache = prefix_layers.read(cfg, params["augment"], x, state.cache, count)
  return _State(cache, prefix_layers.newest(x, count, state.hidden))


def _start(spec, params, target_params, state, root, nodes):
  """Returns `[B, I, F]`, states of inner nodes; but for the root all empty."""
  del spec, params, target_params, root
  states = jnp.zeros((len(state.hidden), nodes, state.hidden.shape[1]),
                     state.hidden.dtype)
  return states.at[:, 0].set(state.hidden)


def _logits(spec, params, target_params, state, draft, tree, level, nodes):
  del state, level
  embeddings = _embed(spec, params, target_params, nodes.of(tree.tokens, 1))
  if nodes.is_root:
    hidden, out = _apply(spec, params, "root", draft[:, :1], embeddings)
  else:
    above = buffers.take_along(
        draft, nodes.of(tree.parents, 1)[:, :, None], axis=1)
    hidden, out = _apply(spec, params, "node", above, embeddings)
  return target_ends.logits(spec.target, target_params, out), (
      jax.lax.dynamic_update_slice_in_dim(draft, hidden, nodes.start, 1))


def _embed(spec, params, target_params, tokens):
  if not spec.config.own_embedding:
    return target_ends.output_rows(spec.target, target_params, tokens)
  return linear_ops.lookup(params["embedding"], tokens).astype(
      spec.config.layers.dtype)


def _apply(spec, params, method, *args):
  return _Clover(spec.config).apply({"params": params["recurrence"]}, *args,
                                    method=method)


def _cosine(x, y, eps):
  """Returns the cosines `[..., 1]` of `[..., C]`."""
  inverse = lambda z: jax.lax.rsqrt(jnp.maximum(
      (z * z).sum(axis=-1, keepdims=True), eps * eps))
  return (x * y).sum(axis=-1, keepdims=True) * inverse(x) * inverse(y)


def _linear(config):
  return functools.partial(layers.Linear, config.dim, True,
                           jnp.dtype(config.dtype), weights=config.weights)


def init(key, config: Config, target):
  """Returns random parameters.

  Returns:
    A dict of `recurrence`, `augment`, and `embedding` where the head has its
    own.
  """
  cfg = config.layers
  keys = jax.random.split(key, 3)
  x = jax.ShapeDtypeStruct((1, cfg.dim), jnp.dtype(cfg.dtype))
  params = {"recurrence": _Clover(config).lazy_init(keys[0], x)["params"],
            "augment": prefix_layers.init(keys[1], cfg)}
  if config.own_embedding:
    params["embedding"] = quantization.initializer(layers.INIT, cfg.weights)(
        keys[2], (target.vocab_size, cfg.dim), jnp.dtype(cfg.dtype))
  return params
