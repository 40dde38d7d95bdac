"""Rotary positions in float64, as the authors of each scaling wrote them."""

import numpy as np


def rotate(config, x):
  """Channels i and i + half of those rotated as one complex number."""
  half = int(config.head_dim * config.rope_part) // 2
  plane = x[..., :half] + 1j * x[..., half:2 * half]
  angles = np.arange(len(x))[:, None] * [
      frequency(config, i, half) for i in range(half)]
  plane = plane * np.exp(1j * angles)[:, None]
  if config.rope_scaling in ("yarn", "longrope"):
    plane *= config.rope_gain
  return np.concatenate([plane.real, plane.imag, x[..., 2 * half:]], axis=-1)


def frequency(config, index, half):
  """Radians a position, of one plane of `half`."""
  plain = config.rope_theta**(-index / half)
  scale = {"none": _plain, "linear": _linear, "llama3": _llama3,
           "yarn": _yarn, "longrope": _longrope}[config.rope_scaling]
  return scale(config, plain, index, half)


def _plain(config, plain, index, half):
  del config, index, half
  return plain


def _linear(config, plain, index, half):
  del index, half
  return plain / config.rope_factor


def _llama3(config, plain, index, half):
  """By wavelengths."""
  del index, half
  length, wavelength = config.rope_original_length, 2 * np.pi / plain
  if wavelength < length / config.rope_high_turns:
    return plain
  if wavelength > length / config.rope_low_turns:
    return plain / config.rope_factor
  smooth = (length / wavelength - config.rope_low_turns) / (
      config.rope_high_turns - config.rope_low_turns)
  return (1 - smooth) * plain / config.rope_factor + smooth * plain


def _yarn(config, plain, index, half):
  """By the planes that turn so often within the original length."""
  first, last = (
      -half * np.log(2 * np.pi * turns / config.rope_original_length)
      / np.log(config.rope_theta)
      for turns in (config.rope_high_turns, config.rope_low_turns))
  if config.rope_truncate:
    first, last = np.floor(first), np.ceil(last)
  first, last = max(first, 0), min(last, 2 * half - 1)
  ramp = min(max((index - first) / (last - first), 0), 1)
  return plain * (1 - ramp) + plain / config.rope_factor * ramp


def _longrope(config, plain, index, half):
  del half
  is_long = config.max_length > config.rope_original_length
  return plain / (config.rope_long_factors if is_long
                  else config.rope_short_factors)[index]
