"""Rotary positions (Su et al. 2021, arXiv 2104.09864) and their scalings."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from decoding_jax import types

KINDS = ("none", "linear", "llama3", "dynamic", "yarn", "longrope")
# Fields of the scalings with a gain, and what they must exceed.
_BOUNDS = {
    "yarn": {"rope_original_length": 0, "rope_gain": 0, "rope_factor": 0,
             "rope_low_turns": 0, "rope_high_turns": 0, "rope_theta": 1},
    "longrope": {"rope_original_length": 1, "rope_gain": 0}}


class RotaryAngles(NamedTuple):
  """Cosines and sines of the angles that rotate planes of channels."""
  # `[B, T, 2, planes]` float32, with the gain of the scaling, once for each
  # half of the channels
  cos: types.Array
  # `[B, T, 2, planes]` float32, the same; negative for the first half
  sin: types.Array


def angles(config, positions) -> RotaryAngles:
  """Returns the angles of positions `[B, T]`."""
  phases = (positions[..., None].astype(jnp.float32)
            * frequencies(config)[None, None])
  cos, sin = jnp.cos(phases), jnp.sin(phases)
  if gain(config) != 1:
    cos, sin = cos * gain(config), sin * gain(config)
  # Stacked, for both halves of the channels, they are arrays: else XLA would
  # compute each cosine again for each channel and layer on a CPU.
  return RotaryAngles(jnp.stack([cos, cos], axis=2),
                      jnp.stack([-sin, sin], axis=2))


def gain(config) -> float:
  """Returns what cosines and sines are multiplied by."""
  return config.rope_gain if config.rope_scaling in _BOUNDS else 1.0


def rotate(x, by: RotaryAngles):
  """Rotates `[B, T, heads, C]`; channels i and i + planes are one plane.
  Channels after all planes are unchanged."""
  planes = by.cos.shape[-1]
  pairs, rest = jnp.split(x, [2 * planes], axis=-1)
  pairs = pairs.astype(jnp.float32).reshape(*x.shape[:-1], 2, planes)
  # One operation: to concatenate two halves takes an accelerator several.
  y = pairs * by.cos[:, :, None] + pairs[..., ::-1, :] * by.sin[:, :, None]
  y = y.reshape(*x.shape[:-1], 2 * planes).astype(x.dtype)
  return jnp.concatenate([y, rest], axis=-1) if rest.size else y


def frequencies(config) -> np.ndarray:
  """Returns the angle between positions, in radians, for each plane.

  The scalings of published checkpoints:

    linear: all wavelengths times the factor (position interpolation,
      arXiv 2306.15595);
    llama3: the long wavelengths times the factor, the short ones as they are,
      and a ramp between;
    dynamic: as they are. It changes the base only for texts that are longer
      than `max_length`, and there a key that was computed while the text was
      shorter is no longer right; so such a model ends at `max_length`;
    yarn: the ramp is over the planes, from `rope_high_turns` to
      `rope_low_turns` (arXiv 2309.00071, section 3.2);
    longrope: each wavelength times a factor of its own (arXiv 2402.13753), of a
      short set for texts up to the original length, and of a long one. What is
      in a cache when a text grows beyond it would be of the wrong set, so a
      model has one for all its texts: the short one if its `max_length` is at
      most the original length (as files are read), else the long one.
  """
  channels = _channels(config)
  plain = config.rope_theta**-(np.arange(0, channels, 2) / channels)
  scale = {"none": _plain, "linear": _linear, "llama3": _llama3,
           "dynamic": _plain, "yarn": _yarn,
           "longrope": _longrope}[config.rope_scaling]
  return scale(config, plain).astype(np.float32)


def check(config):
  """Raises ValueError unless "yarn" and "longrope" have what they need."""
  scaling = config.rope_scaling
  for name, bound in _BOUNDS.get(scaling, {}).items():
    if not getattr(config, name) > bound:
      raise ValueError(
          f"transformer {name}={getattr(config, name)!r}: more than {bound} is "
          f"needed for rope_scaling={scaling!r}.")
  planes = len(range(0, _channels(config), 2))
  for name in ("rope_short_factors", "rope_long_factors"):
    factors = getattr(config, name)
    if scaling == "longrope" and not (len(factors) == planes
                                      and all(x > 0 for x in factors)):
      raise ValueError(f"transformer {name}={factors!r}: {planes} numbers of "
                       "more than 0 are needed, one for each plane.")


def _channels(config):
  return int(config.head_dim * config.rope_part)


def _plain(config, plain):
  del config
  return plain


def _linear(config, plain):
  return plain / config.rope_factor


def _llama3(config, plain):
  # Turns within the original length; the fewer, the more is interpolated.
  turns = config.rope_original_length * plain / (2 * np.pi)
  kept = (turns - config.rope_low_turns) / (
      config.rope_high_turns - config.rope_low_turns)
  return _between(config, plain, np.clip(kept, 0, 1))


def _yarn(config, plain):
  channels, theta = _channels(config), np.log(config.rope_theta)

  def plane(turns):
    # Which one turns so often within the original length.
    wavelengths = config.rope_original_length / (2 * np.pi * turns)
    return channels * np.log(wavelengths) / (2 * theta)

  first, last = plane(config.rope_high_turns), plane(config.rope_low_turns)
  if config.rope_truncate:
    first, last = np.floor(first), np.ceil(last)
  # There are half as many planes, but this is the end that was trained with.
  first, last = max(first, 0), min(last, channels - 1)
  if first == last:
    last += 0.001
  ramp = (np.arange(len(plain)) - first) / (last - first)
  return _between(config, plain, 1 - np.clip(ramp, 0, 1))


def _longrope(config, plain):
  is_short = config.max_length <= config.rope_original_length
  return plain / np.array(config.rope_short_factors if is_short
                          else config.rope_long_factors)


def _between(config, plain, kept):
  """Returns a mix; `kept` is the share that is not interpolated."""
  return plain * (kept + (1 - kept) / config.rope_factor)
