"""What the layers of a decoder see: rotations, and masks of cache and block."""

import dataclasses

import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax.runtime import cache as cache_lib
from models.transformer import layers
from models.transformer import rope


def narrow(config):
  """Returns for each layer whether it is one of those with the window. Or,
  without a window, one of those that are rotated where others are not."""
  every = config.full_every or config.num_layers + 1
  two_kinds = config.window > 0 or not config.rope_full
  return [two_kinds and (i + 1) % every > 0 for i in range(config.num_layers)]


def of(config, cache, positions, mask, packing=None):
  """Returns the `layers.AttentionView` of a forward, or two: full and narrow.
  Positions are `[B, T]`; `mask [B, T, N]` has each token and its ancestors."""
  full, local = dataclasses.replace(config, window=0), config
  if config.rope_local_theta:
    local = dataclasses.replace(config, rope_scaling="none",
                                rope_theta=config.rope_local_theta)

  def view(config):
    angles = None
    if config.positions == "rope":
      angles = rope.angles(config, packing.packed(positions) if packing else (
          positions))
      if config is full and not config.rope_full:
        # Not None: a scan has one program for all layers.
        angles = rope.RotaryAngles(jnp.ones_like(angles.cos),
                                   jnp.zeros_like(angles.sin))
    return layers.AttentionView(
        angles, *_masks(config.window, cache, positions, mask, has_start),
        packing)

  is_narrow = sorted(set(narrow(config)))
  # A scan has one program for all layers.
  has_start = len(is_narrow) > 1 and config.scan_layers
  return tuple(view(local if x else full) for x in is_narrow)


def kv_of_layers(cache, block):
  """Returns the keys and values that layers read, each a tuple of layers. They
  come from the cache, from what its rows share, if anything, and from the
  block."""
  prefix = [cache, cache.shared] if cache.shared else [cache]
  return tuple(x for part in (*prefix, block) for x in (part.keys, part.values))


def _masks(window, cache, positions, mask, has_start):
  """Returns what each fresh token attends to. Masks `[B, 1 or T, S]` of the
  cache and `[B, T, N]` of the block, the span of the former, and mask and span
  of what rows share, if there is any. A window of 0 is none; `has_start` gives
  the span a start even so."""
  shared = cache_lib.num_shared(cache)
  stop = cache.length - shared
  first = positions - window + 1 if window else (
      jnp.zeros_like(positions) if has_start else None)
  # All layers of the first few of a model may have states instead.
  slots = cache.keys[0].shape[-1] if cache.keys else 0
  own = _seen(slots, stop,
              first - shared if window else first)
  of_shared = _seen(shared, jnp.full(1, shared, stop.dtype),
                    first) if cache.shared else ()
  if window and mask.shape[-1] > window:
    # The positions of the block's older tokens are not given; but ancestors
    # have one position each and stand in order, so that counting those between
    # a token and its ancestor tells how far back it is.
    after = jnp.cumsum(mask[..., ::-1], axis=-1)[..., ::-1] - mask
    mask &= after < window
  return own[0], mask, own[1], of_shared


def _seen(slots, stop, start):
  """Returns mask `[B or 1, 1 or T, S]` and span of slots from start to stop.
  `stop` is `[B or 1]`; `start` is `[B, T]`, None for 0."""
  order = jnp.arange(slots)[None, None]
  mask = order < stop[:, None, None]
  if start is not None:
    mask &= order >= start[:, :, None]
  return mask, kernels.Span(stop, start)
