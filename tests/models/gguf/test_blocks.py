"""Blocks of GGUF files, against the package that dequantises them."""

import jax.numpy as jnp
import numpy as np
import pytest

from decoding_jax import kernels
from models.gguf import blocks

gguf = pytest.importorskip("gguf", reason="needs pip install -e '.[gguf]'")
# Where scales of 16 bits begin in a block.
SCALES = {"Q6_K": [208], "Q4_0": [0], "Q5_0": [0], "Q8_0": [0]}


@pytest.mark.parametrize("name", sorted(blocks.TYPES))
def test_groups_are_what_is_dequantised(name):
  kind, rng = gguf.GGMLQuantizationType[name], np.random.default_rng(0)
  per_block, size = gguf.GGML_QUANT_SIZES[kind]
  rows = rng.integers(0, 256, (3, 2, 4 * size), np.uint8)
  for at in SCALES.get(name, [0, 2]):
    # Some of them are so small that they have few digits.
    scales = rng.normal(size=(3, 2, 4, 1)) * 10.0 ** rng.integers(-7, 0, 4)[
        :, None]
    rows.reshape(3, 2, 4, size)[..., at:at + 2] = scales.astype(
        np.float16).view(np.uint8)
  groups = blocks.groups(name, rows)
  assert groups.scales.shape[-1] in (4 * per_block // 32, 4 * per_block // 16)
  arrays = [None if x is None else jnp.asarray(x) for x in groups]
  np.testing.assert_array_equal(
      kernels.dequantized(*arrays, jnp.float32),
      gguf.dequantize(rows.reshape(6, -1), kind).reshape(3, 2, -1))
