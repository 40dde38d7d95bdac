"""Rotary positions (Su et al. 2021, arXiv 2104.09864) and their scalings."""

import jax.numpy as jnp
import numpy as np

KINDS = ("none", "linear", "llama3", "dynamic")


def angles(config, positions):
  """Rotary angles `[planes, B, T]` in float32, of positions `[B, T]`."""
  positions = positions.astype(jnp.float32)[None]
  return frequencies(config)[:, None, None] * positions


def rotate(x, turns):
  """Rotates `[H, G, C, B, T]`; channels i and i + planes are one plane.

  Args:
    x: queries or keys.
    turns: of `angles`.

  Returns:
    The same, turned by its positions; channels behind all planes are not.
  """
  planes = len(turns)
  a, b, rest = jnp.split(x.astype(jnp.float32), [planes, 2 * planes], axis=2)
  cos, sin = jnp.cos(turns)[None, None], jnp.sin(turns)[None, None]
  y = jnp.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=2)
  return y.astype(x.dtype)


def frequencies(config) -> np.ndarray:
  """Radians a position turns each plane of channels.

  The scalings are those of published checkpoints:

    linear: all wavelengths times the factor (position interpolation,
      arXiv 2306.15595);
    llama3: the long wavelengths times the factor, the short ones as they are,
      and a ramp between;
    dynamic: as they are. It changes the base only for texts that are longer
      than `max_length`, and there a key that was computed while the text was
      shorter is no longer right; so such a model ends at `max_length`.

  Args:
    config: a `transformer.Config`.

  Returns:
    `[planes]` float32, half as many as channels are rotated.
  """
  channels = int(config.head_dim * config.rope_part)
  plain = config.rope_theta**-(np.arange(0, channels, 2) / channels)
  scale = {"none": _plain, "linear": _linear, "llama3": _llama3,
           "dynamic": _plain}[config.rope_scaling]
  return scale(config, plain).astype(np.float32)


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
  kept = np.clip(kept, 0, 1)
  return plain * (kept + (1 - kept) / config.rope_factor)
