"""Decoder layers over the pairs that a head has read, with a cache of them."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Block, Cache
from models import transformer
from models.transformer import decoder
from models.transformer import layers
from models.transformer import views


class _Layers(nn.Module):
  """Layers and a norm."""
  config: transformer.Config

  @nn.compact
  def __call__(self, x, cache, block, seen):
    cfg = self.config
    x, block, _ = decoder.Unrolled(cfg, name="layers")(x, cache, block, 0, seen)
    return layers.NORMS[cfg.norm](cfg, name="norm")(x), block


def check(config, target) -> None:
  """Raises ValueError for layers that do not fit a target.

  Args:
    config: the `transformer.Config` of the layers.
    target: the `transformer.Config` of the target.
  """
  if config.scan_layers or config.dim != target.dim:
    raise ValueError(f"layers: dim={config.dim}, scan_layers="
                     f"{config.scan_layers}: the dim of the target, "
                     f"{target.dim}, and scan_layers=False are needed.")


def empty_cache(config, batch: int, slots: int) -> Cache:
  """Returns a cache of the layers without a pair."""
  return transformer.language_model(config).init_cache(batch, slots)


def forward(config, params, x, cache) -> tuple[jax.Array, Block]:
  """Goes through the layers.

  Args:
    config: a `transformer.Config` with the sizes of the layers.
    params: of `init`.
    x: `[B, T, F]`, of T more pairs.
    cache: of those before them.

  Returns:
    `[B, T, F]`, normed, and the block of the fresh keys and values.
  """
  batch, length, _ = x.shape
  order = jnp.arange(length, dtype=jnp.int32)
  mask = jnp.broadcast_to(order[:, None] >= order[None],
                          (batch, length, length))
  seen = views.of(config, cache, cache.length[:, None] + order[None], mask)
  return _Layers(config).apply({"params": params}, x, cache,
                               cache_lib.init_block(cache, length), seen)


def read(config, params, x, cache, count) -> tuple[jax.Array, Cache]:
  """Does what `forward` does, and commits the first `count [B]` pairs."""
  x, block = forward(config, params, x, cache)
  order = jnp.arange(x.shape[1], dtype=jnp.int32)
  slots = cache_lib.await_block(jnp.broadcast_to(order, x.shape[:2]), block)
  return x, cache_lib.commit(cache, block, slots, count)


def newest(x, count, before):
  """Returns `[B, F]` of the last of `count` pairs; `before` where it is 0."""
  last = jnp.maximum(count - 1, 0)[:, None, None]
  found = buffers.take_along(x, last, axis=1)[:, 0]
  return jnp.where(count[:, None] > 0, found, before)


def abstract_inputs(config):
  """Returns shapes of a cache of one slot, and what one token sees of it."""
  cache = jax.eval_shape(lambda: empty_cache(config, 1, 1))
  numbers, mask = (jax.ShapeDtypeStruct((1, 1), jnp.int32),
                   jax.ShapeDtypeStruct((1, 1, 1), bool))
  return cache, jax.eval_shape(lambda *x: views.of(config, *x), cache, numbers,
                               mask)


def init(key, config):
  """Returns random parameters of the layers and their norm."""
  x = jax.ShapeDtypeStruct((1, 1, config.dim), jnp.dtype(config.dtype))
  cache, seen = abstract_inputs(config)
  return _Layers(config).lazy_init(
      key, x, cache, Block(cache.keys, cache.values), seen)["params"]
