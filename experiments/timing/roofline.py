"""Measures what bounds the time of a forward on this device.

A forward reads all weights and multiplies, neither faster than this device
reads a large array or multiplies large matrices (Williams et al. 2009,
"Roofline", CACM 52).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from decoding_jax.validation import memory
from experiments.timing import stopwatch
from models import transformer
from models.transformer import moe
from models.transformer import quantization

# Bytes to read: more than the caches of a chip hold.
_BYTES = {"cpu": 2**28}
_LARGE = 2**32
# Side of square matrices.
_SIDES = {"cpu": 2048}
_LARGE_SIDE = 8192
_WIDEST = "float32"
_ROUNDS = 7


class Roofline(NamedTuple):
  """Measured peak rates of this device, a second."""
  bandwidth: float  # Bytes read.
  flops: dict[str, float]  # Operations of matrix products, by dtype.

  def __str__(self):
    products = ", ".join(f"{value / 1e9:,.0f} GFLOP/s in {dtype}"
                         for dtype, value in self.flops.items())
    return f"reads {self.bandwidth / 1e9:,.1f} GB/s and multiplies {products}"


def measure(dtypes=("float32",)) -> Roofline:
  """Measures the peak rates of the first device, which takes some seconds."""
  platform = jax.devices()[0].platform
  side, flops = _SIDES.get(platform, _LARGE_SIDE), {}
  for dtype in sorted({*dtypes, _WIDEST}):
    square = jnp.ones((side, side), dtype)
    flops[dtype] = 2 * side**3 / _best(_product, square, square)
  rows = _BYTES.get(platform, _LARGE) // (4 * side)
  matrix, vector = jnp.ones((rows, side)), jnp.ones((side, 1))
  seconds = min(_best(_product, matrix, vector), _best(_sum, matrix))
  return Roofline(4 * rows * side / seconds, flops)


def weight_bytes(config, params) -> int:
  """Returns the bytes of parameters that a forward of one token reads."""
  leaves = {transformer.param_name(path): leaf for path, leaf
            in jax.tree_util.tree_leaves_with_path(
                params, is_leaf=quantization.is_matrix)}
  # Of a table of embeddings that is no output layer few rows are read.
  tables = {"positions"} | ({"embedding"} if "head" in leaves else set())
  total = 0
  for name, leaf in leaves.items():
    if name in tables:
      continue
    size = memory.size(leaf)
    # First layers without experts have matrices of these names too.
    if config.num_experts and moe.is_kernel(name) and len(
        quantization.shape(leaf)) > 2:
      size = size * config.experts_per_token // config.num_experts
    total += size
  return total


def _best(function, *args):
  jax.block_until_ready(function(*args))
  return min(stopwatch.timed(function, *args)[1] for _ in range(_ROUNDS))


# As models multiply; rounding results to 16 bits at once is slower on a CPU.
_product = jax.jit(functools.partial(jnp.matmul,
                                     preferred_element_type=jnp.float32))
_sum = jax.jit(jnp.sum)
