"""The least time that a forward can take on this device, by measurement.

A forward reads all weights and the filled part of the cache, and multiplies.
Neither can be faster than this device reads a large array or multiplies large
matrices (Williams et al. 2009, "Roofline", CACM 52). Left out is what attention
multiplies, and whatever stays in a chip's own memory: it is a bound, not an
estimate.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.timing import stopwatch
from models import transformer
from models.transformer import moe
from models.transformer import quantization

# Bytes that are read: more than any chip's cache has room for.
_BYTES = {"cpu": 2**28}
_LARGE = 2**32
# Side of square matrices.
_SIDES = {"cpu": 2048}
_LARGE_SIDE = 8192
_WIDEST = "float32"
_ROUNDS = 7


class Roofline(NamedTuple):
  """What this device does at most.

  Attributes:
    bandwidth: bytes read per second.
    flops: floating point operations per second of matrix products, by dtype.
  """
  bandwidth: float
  flops: dict[str, float]


class Sizes(NamedTuple):
  """What a forward of one model reads and multiplies.

  Attributes:
    weights: bytes of parameters that every forward reads.
    slot: bytes of keys and values of a token.
    multiplied: weights that each fresh token is multiplied with.
    dtype: of activations.
  """
  weights: int
  slot: int
  multiplied: int
  dtype: str


def measure(dtypes=("float32",)) -> Roofline:
  """Reads and multiplies on the first device, some seconds.

  Args:
    dtypes: of the matrix products; float32 is measured besides.

  Returns:
    The best of several rounds each.
  """
  side = _side()
  flops = {}
  for dtype in sorted({*dtypes, _WIDEST}):
    square = jnp.ones((side, side), dtype)
    flops[dtype] = 2 * side**3 / _best(_product, square, square)
  return Roofline(bandwidth(), flops)


def bandwidth() -> float:
  """Bytes that the first device reads per second at the moment.

  Returns:
    The best of several rounds: of products of a matrix and a vector, and of
    sums, whichever are the faster.
  """
  side = _side()
  rows = _BYTES.get(jax.devices()[0].platform, _LARGE) // (4 * side)
  matrix, vector = jnp.ones((rows, side)), jnp.ones((side, 1))
  seconds = min(_best(_product, matrix, vector), _best(_sum, matrix))
  matrix.delete()
  return 4 * rows * side / seconds


def sizes(config, params) -> Sizes:
  """What a forward of a transformer reads and multiplies.

  Args:
    config: its `transformer.Config`.
    params: its parameters, or their shapes.

  Returns:
    `Sizes`. Of a table of embeddings only a few rows are read, unless it is
    the output layer as well; of experts as many as a token uses, at least.
  """
  leaves = {transformer.param_name(path): leaf for path, leaf
            in jax.tree_util.tree_leaves_with_path(
                params, is_leaf=quantization.is_matrix)}
  tables = {"positions"} | ({"embedding"} if "head" in leaves else set())
  weights = multiplied = 0
  for name, leaf in leaves.items():
    if name in tables:
      continue
    used, of = 1, 1
    if config.num_experts and moe.is_kernel(name):
      used, of = config.experts_per_token, config.num_experts
    weights += sum(map(_bytes, jax.tree.leaves(leaf))) * used // of
    if name.rpartition("/")[2] in ("kernel", "head", "embedding"):
      multiplied += math.prod(quantization.shape(leaf)) * used // of
  cache = jax.eval_shape(
      lambda: transformer.language_model(config).init_cache(1, 1))
  return Sizes(weights, sum(map(_bytes, (*cache.keys, *cache.values))),
               multiplied, config.dtype)


def step_seconds(roofline: Roofline, model: Sizes, batch, fresh_tokens,
                 live_length) -> float:
  """The least seconds of one forward.

  Args:
    roofline: of `measure`, with the dtype of the model.
    model: of `sizes`.
    batch: B.
    fresh_tokens: T, of each row.
    live_length: committed tokens of each row.

  Returns:
    Seconds: those of reading, or of multiplying if they are more.
  """
  read = model.weights + batch * live_length * model.slot
  flops = 2 * batch * fresh_tokens * model.multiplied
  # Numbers of fewer bits may be multiplied as float32, on CPUs the faster way.
  rate = max(roofline.flops[model.dtype], roofline.flops.get(_WIDEST, 0))
  return max(read / roofline.bandwidth, flops / rate)


def _bytes(x):
  return x.size * np.dtype(x.dtype).itemsize


def _side():
  return _SIDES.get(jax.devices()[0].platform, _LARGE_SIDE)


def _best(function, *args):
  """Seconds of the fastest call."""
  jax.block_until_ready(function(*args))
  return min(stopwatch.timed(function, *args)[1] for _ in range(_ROUNDS))


# As models multiply; what is rounded to 16 bits at once is slower on a CPU.
_product = jax.jit(functools.partial(jnp.matmul,
                                     preferred_element_type=jnp.float32))
_sum = jax.jit(jnp.sum)
