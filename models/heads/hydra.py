"""Hydra (arXiv 2402.05109): Medusa heads that depend on the draft so far.

Head i reads the target's last hidden state before the root, and the embeddings
of the root and of the i drafted tokens after it: so each node of a tree has a
distribution of its own, of a product with few rows. Hydra++ (section 4) puts a
decoder layer over the hidden states of all tokens first.

The format was read in zankner/Hydra@3f39fbd2 (mlp_head.py, prefix_mlp_head.py
of hydra/model/hydra_heads).
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


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of the heads.

  Attributes:
    heads: how many there are: the levels that they can draft.
    blocks: residual blocks of a head before its output layer.
    prefix: a `transformer.Config` of the layer that reads the hidden states
      first (Hydra++), None for none. Files hold none of its sizes, which are
      those of the target's layers there.
    weights: format of matrices, one of `quantization.WEIGHTS`.
  """
  heads: int = 4
  blocks: int = 1
  prefix: Any = None
  weights: str = quantization.DTYPE


@flax.struct.dataclass
class _State:
  """What has been read.

  Attributes:
    caches: of the prefix layer; of none without it.
    feature: `[B, F]`, the hidden state before the root.
  """
  caches: tuple[Cache, ...]
  feature: Array


class _Heads(nn.Module):
  """All heads, or one of them."""
  config: Config
  target: Any

  @nn.compact
  def __call__(self, x, only=None):
    """Returns logits `[..., V]` of each head, or of one alone.

    Args:
      x: `[..., (1 + H) F]`, a hidden state and the embeddings of H tokens.
      only: number of a head; None for all.
    """
    cfg, dim = self.config, self.target.dim
    linear = functools.partial(layers.Linear, dim, True,
                               jnp.dtype(self.target.dtype),
                               weights=cfg.weights)
    found = []
    for i in range(cfg.heads) if only is None else (only,):
      y = x[..., :(i + 2) * dim]
      for j in range(cfg.blocks):
        inner = nn.silu(linear(name=f"head_{i}_block_{j}")(y))
        # The first block has fewer outputs than inputs.
        y = inner + (y if j else linear(name=f"head_{i}_residual")(y))
      found.append(self._output(i, y))
    return found

  def _output(self, i, y):
    shape, dtype = (self.target.vocab_size, self.target.dim), jnp.dtype(
        self.target.dtype)
    table = self.param(f"head_{i}_out", quantization.initializer(
        layers.INIT, self.config.weights), shape, dtype)
    bias = self.param(f"head_{i}_out_bias", nn.initializers.zeros,
                      (shape[0], 1), dtype)
    return linear_ops.matmul(y, table) + jnp.expand_dims(
        bias[:, 0].astype(jnp.float32), range(y.ndim - 1))


@functools.lru_cache(maxsize=None)
def head(config: Config, target) -> Head:
  """Returns Hydra heads on a target that keeps its last layer's output."""
  target_ends.check(target)
  if config.prefix:
    prefix_layers.check(config.prefix, target)
  return assembly.head(
      assembly.Spec(config, target), (_init, _read, _start, _logits),
      lambda key: init(key, config, target), lambda depth: 1,
      depth=config.heads,
      max_length=config.prefix.max_length if config.prefix else 0)


def unrolled(config: Config, target, params, target_params, features, tokens,
             depth: int):
  """Returns what the heads predict after the right tokens, for training.

  Returns:
    `[B, depth, T, V]` logits of the token after `tokens`; those of pair t of
    head i are meant only for t >= i.
  """
  x = target_ends.norm(target, target_params, features[0])
  if config.prefix:
    x, _ = prefix_layers.forward(
        config.prefix, params["prefix"], x,
        prefix_layers.empty_cache(config.prefix, len(x), 0))
  embeddings = target_ends.embed(target, target_params, tokens)
  found = []
  for i in range(depth):
    # The root is i tokens before the last one that head i reads.
    inputs = [_later(x, i), *(_later(embeddings, i - j) for j in range(i + 1))]
    found += _heads(config, target, params, jnp.concatenate(inputs, -1), i)
  return jnp.stack(found, axis=1)


def _init(spec, batch, slots):
  config, target = spec
  caches = (prefix_layers.empty_cache(config.prefix, batch, slots),) if (
      config.prefix) else ()
  return _State(caches, jnp.zeros((batch, target.dim), target.dtype))


def _read(spec, params, target_params, state, features, tokens, count):
  del tokens
  x, caches = target_ends.norm(spec.target, target_params, features[0]), ()
  if state.caches:
    x, cache = prefix_layers.read(spec.config.prefix, params["prefix"], x,
                                  state.caches[0], count)
    caches = (cache,)
  return _State(caches, prefix_layers.newest(x, count, state.feature))


def _start(spec, params, target_params, state, root, nodes):
  """Returns `[B, I, H]` int32, the tokens from the root to each inner node."""
  del params, target_params, state
  paths = jnp.zeros((len(root), nodes, spec.config.heads), jnp.int32)
  return paths.at[:, 0, 0].set(root)


def _logits(spec, params, target_params, state, draft, tree, level, nodes):
  config, target = spec
  if not nodes.is_root:
    above = buffers.take_along(
        draft, nodes.of(tree.parents, 1)[:, :, None], axis=1)
    paths = jnp.where(jnp.arange(config.heads)[None, None] == level,
                      nodes.of(tree.tokens, 1)[:, :, None], above)
    draft = jax.lax.dynamic_update_slice_in_dim(draft, paths, nodes.start, 1)
  paths = nodes.of(draft, 1)
  embeddings = target_ends.embed(target, target_params, paths)
  feature = jnp.broadcast_to(state.feature[:, None],
                             (*paths.shape[:2], target.dim))
  x = jnp.concatenate([feature, embeddings.reshape(*paths.shape[:2], -1)], -1)
  # Levels of one shape share a program.
  return jax.lax.switch(level, [
      lambda x, i=i: _heads(config, target, params, x, i)[0]
      for i in range(config.heads)], x), draft


def _heads(config, target, params, x, only):
  return _Heads(config, target).apply({"params": params["heads"]}, x, only)


def _later(x, places):
  """Returns `[B, T, F]` moved to later places, with zeros before it."""
  return jnp.pad(x, ((0, 0), (places, 0), (0, 0)))[:, :x.shape[1]]


def init(key, config: Config, target):
  """Returns random parameters: `heads`, and `prefix` for Hydra++."""
  shape = jax.ShapeDtypeStruct((1, (1 + config.heads) * target.dim),
                               jnp.dtype(target.dtype))
  params = {"heads": _Heads(config, target).lazy_init(key, shape)["params"]}
  if config.prefix:
    params["prefix"] = prefix_layers.init(jax.random.fold_in(key, 1),
                                          config.prefix)
  return params
