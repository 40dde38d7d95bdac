"""Scalings of rotary positions."""

import dataclasses

import numpy as np
import pytest

from models.transformer import rope
from support import rope_reference, tiny_models as tiny

# As Qwen2.5 has it for long texts, and as Phi-4 mini has it.
YARN = dataclasses.replace(
    tiny.LLAMA, head_dim=128, rope_scaling="yarn", rope_factor=4.0,
    rope_low_turns=1.0, rope_high_turns=32.0, rope_original_length=32768.0,
    rope_theta=1e6, max_length=131072)
LONGROPE = dataclasses.replace(
    tiny.LLAMA, head_dim=128, rope_part=0.75, rope_scaling="longrope",
    rope_original_length=4096.0, rope_gain=1.2,
    rope_short_factors=tuple(np.linspace(1, 2, 48)),
    rope_long_factors=tuple(np.linspace(1, 64, 48)), max_length=4096)


@pytest.mark.parametrize("config", [
    YARN, dataclasses.replace(YARN, rope_truncate=False),
    dataclasses.replace(YARN, rope_theta=100.0),
    # No plane turns so often, and none so rarely.
    dataclasses.replace(YARN, rope_high_turns=1e5, rope_low_turns=1e-4),
    LONGROPE, dataclasses.replace(LONGROPE, max_length=4097)])
def test_frequencies(config):
  result = rope.frequencies(config)
  np.testing.assert_allclose(
      result, [rope_reference.frequency(config, i, len(result))
               for i in range(len(result))], rtol=1e-6)


def test_yarn_keeps_short_wavelengths_and_interpolates_long_ones():
  """A ramp of no width has no plane between, and divides nothing by zero."""
  plain = rope.frequencies(dataclasses.replace(YARN, rope_scaling="none"))
  share = rope.frequencies(YARN) / plain
  np.testing.assert_allclose(share[:23], 1, rtol=1e-6)
  np.testing.assert_allclose(share[40:], 0.25, rtol=1e-6)
  assert np.all(np.diff(share[23:41]) < 0)
  config = dataclasses.replace(YARN, rope_high_turns=32, rope_low_turns=32,
                               rope_truncate=False)
  share = np.round(rope.frequencies(config) / plain, 5)
  assert set(share) == {np.float32(1), np.float32(0.25)}


def test_the_gain_is_of_these_scalings_alone():
  assert rope.gain(YARN) == 1 and rope.gain(LONGROPE) == 1.2
  assert rope.gain(dataclasses.replace(LONGROPE, rope_scaling="none")) == 1


@pytest.mark.parametrize("config, fields, message", [
    (YARN, {"rope_original_length": 0},
     "rope_original_length=0: more than 0 is needed for rope_scaling='yarn'"),
    (YARN, {"rope_theta": 1.0}, "rope_theta=1.0: more than 1 is needed"),
    (YARN, {"rope_high_turns": -1}, "rope_high_turns=-1: more than 0"),
    (LONGROPE, {"rope_gain": 0.0}, "rope_gain=0.0: more than 0"),
    (LONGROPE, {"rope_original_length": 1.0},
     "rope_original_length=1.0: more than 1"),
    (LONGROPE, {"rope_short_factors": (1.0,)},
     r"rope_short_factors=\(1.0,\): 48 numbers of more than 0 are needed"),
    (LONGROPE, {"rope_long_factors": (1.0,) * 47 + (0.0,)},
     r"rope_long_factors=.*, 0.0\): 48 numbers of more than 0")])
def test_what_a_scaling_lacks_is_told(config, fields, message):
  with pytest.raises(ValueError, match=message):
    dataclasses.replace(config, **fields)
