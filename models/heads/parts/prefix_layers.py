"""Decoder layers over the pairs that a head has read, with a cache of them."""

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Array, Block, Cache
from models import transformer
from models.transformer import decoder
from models.transformer import layers
from models.transformer import views


@flax.struct.dataclass
class State:
  """The state of a head after the pairs it has read."""
  caches: tuple[Cache, ...]  # Of its layers over pairs, one or none
  hidden: Array  # `[B, F]` of the last pair


class _Layers(nn.Module):
  """Layers and a norm."""
  config: transformer.Config

  @nn.compact
  def __call__(self, x, cache, block, seen):
    cfg = self.config
    x, block, _ = decoder.Unrolled(cfg, name="layers")(x, cache, block, 0, seen)
    return layers.NORMS[cfg.norm](cfg, name="norm")(x), block


def check(config, target) -> None:
  """Raises ValueError for layers that do not fit a target."""
  if config.scan_layers or config.dim != target.dim:
    raise ValueError(f"layers: dim={config.dim}, scan_layers="
                     f"{config.scan_layers}: the dim of the target, "
                     f"{target.dim}, and scan_layers=False are needed.")


def empty_cache(config, batch: int, slots: int = 0) -> Cache:
  """Returns a cache of the layers without a pair."""
  return transformer.language_model(config).init_cache(batch, slots)


def init_state(config, like, spec, batch, slots) -> State:
  """Returns the state before any pair; what the layers make is of the size and
  type of `like`."""
  del spec
  return State((empty_cache(config, batch, slots),) if config else (),
               jnp.zeros((batch, like.dim), like.dtype))


def causal(batch: int, length: int):
  """Returns the mask `[B, T, T]` of a text, and its positions from 0 on."""
  order = jnp.arange(length, dtype=jnp.int32)
  return jnp.broadcast_to(order[:, None] >= order[None],
                          (batch, length, length)), order[None]


def forward(config, params, x):
  """Returns what the layers make of pairs `[B, T, F]`; None leaves them."""
  if not config:
    return x
  return _forward(config, params, x, empty_cache(config, len(x)))[0]


def _forward(config, params, x, cache):
  mask, order = causal(*x.shape[:2])
  seen = views.of(config, cache, cache.length[:, None] + order, mask)
  return _Layers(config).apply({"params": params}, x, cache,
                               cache_lib.init_block(cache, x.shape[1]), seen)


def read(config, params, x, state: State, count) -> State:
  """Reads pairs `x [B, T, F]`, and keeps the first `count [B]` of them."""
  if not config:
    return state.replace(hidden=newest(x, count, state.hidden))
  return committed(state, *_forward(config, params, x, state.caches[0]), count)


def committed(state: State, x, block, count) -> State:
  """Returns the state after `count [B]` pairs of `x [B, T, F]` and a block."""
  order = jnp.arange(x.shape[1], dtype=jnp.int32)
  slots = cache_lib.await_block(jnp.broadcast_to(order, x.shape[:2]), block)
  cache = cache_lib.commit(state.caches[0], block, slots, count)
  return State((cache,), newest(x, count, state.hidden))


def newest(x, count, before):
  """Returns `[B, F]` of the last of `count` pairs; `before` where it is 0."""
  last = jnp.maximum(count - 1, 0)[:, None, None]
  own = buffers.take_along(x, last, axis=1)[:, 0]
  return jnp.where(count[:, None] > 0, own, before)


def alone(config, cache, positions):
  """Returns views of tokens `[B, T]` that each see themselves alone. For their
  keys and values, when nothing else is asked for."""
  batch, width = positions.shape
  mask = jnp.broadcast_to(jnp.eye(width, dtype=bool), (batch, width, width))
  return views.of(config, cache, positions, mask)


def abstract_inputs(config):
  """Returns shapes of a cache of one slot, its block, and what a token sees."""
  cache = jax.eval_shape(lambda: empty_cache(config, 1, 1))
  numbers, mask = (jax.ShapeDtypeStruct((1, 1), jnp.int32),
                   jax.ShapeDtypeStruct((1, 1, 1), bool))
  return cache, Block(cache.keys, cache.values), jax.eval_shape(
      lambda *x: views.of(config, *x), cache, numbers, mask)


def init(key, config):
  """Returns random parameters of the layers and their norm."""
  x = jax.ShapeDtypeStruct((1, 1, config.dim), jnp.dtype(config.dtype))
  return _Layers(config).lazy_init(key, x, *abstract_inputs(config))["params"]
