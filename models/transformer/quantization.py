"""Weights of fewer bits than activations have.

bfloat16, for float32 activations: half of the bytes are read, with the results
of the same weights in float32.

int8, symmetric with a float32 scale for each output channel (Jacob et al. 2018,
arXiv 1712.05877, weights only): the largest weight becomes 127 or -127, and no
weight is off by more than half of its scale. Activations, norms, biases and
caches keep their type. The embedding has a scale for each token.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import types

# Weights of a `transformer.Config`: of its own type, or of 16 or 8 bits.
DTYPE, BFLOAT16, INT8 = "dtype", "bfloat16", "int8"
WEIGHTS = (DTYPE, BFLOAT16, INT8)
_LARGEST = 127
# A row without a larger weight becomes zeros: the inverse of its scale might be
# infinite.
_SMALLEST = 1e-30
# Weights that are quantised at a time on the host, where they are float32.
_AT_ONCE = 2**20


@flax.struct.dataclass
class Matrix:
  """A matrix `values * scales`, or several."""
  values: types.Array  # `[..., out, in]` int8, -127 to 127
  scales: types.Array  # `[..., out, 1]` float32, at least 0


def is_matrix(x) -> bool:
  """Returns whether this part of a tree of parameters is a `Matrix`."""
  return isinstance(x, Matrix)


def shape(x) -> tuple[int, ...]:
  """Returns the shape of a matrix, an array or a `Matrix`."""
  return (x.values if is_matrix(x) else x).shape


def quantize(x) -> Matrix:
  """Rounds `[..., out, in]`, of numpy or of JAX, and so is the result. Weights
  are within half of a scale of `x`, up to roundings of float32."""
  x = x.astype(np.float32)
  largest = abs(x).max(axis=-1, keepdims=True)
  # Products: XLA computes quotients as such, and would round as numpy does not.
  scales = largest * (largest > _SMALLEST) * np.float32(1 / _LARGEST)
  values = x * (1 / (scales + (scales == 0)))
  return Matrix(values.round().astype(np.int8), scales)


def on_host(x: np.ndarray) -> Matrix:
  """Does what `quantize` does, with little memory besides matrix and result."""
  rows = x.reshape(-1, x.shape[-1])
  values = np.empty(rows.shape, np.int8)
  scales = np.empty((len(rows), 1), np.float32)
  step = max(_AT_ONCE // rows.shape[1], 1)
  for start in range(0, len(rows), step):
    part = slice(start, start + step)
    matrix = quantize(rows[part])
    values[part], scales[part] = matrix.values, matrix.scales
  return Matrix(values.reshape(x.shape), scales.reshape(*x.shape[:-1], 1))


def dequantize(matrix: Matrix, dtype) -> types.Array:
  """Returns the matrix in a floating-point type."""
  return (matrix.values.astype(jnp.float32) * matrix.scales).astype(dtype)


def initializer(init, weights: str):
  """Returns `(key, shape, dtype) -> array`, or `-> Matrix` for int8."""
  if weights == BFLOAT16:
    return lambda key, shape, dtype: init(key, shape, jnp.bfloat16)
  return init if weights == DTYPE else lambda *args: quantize(init(*args))


def check_whole(weights: str, what: str) -> None:
  """Raises ValueError unless weights have the model's type; `what`: "saved"."""
  if weights != DTYPE:
    raise ValueError(f"weights={weights!r}: a model can be {what} with "
                     f"weights={DTYPE!r} alone; give others when it is loaded.")


def tree(like: types.Params, params: types.Params) -> types.Params:
  """Quantises parameters one by one, as matrices of `like` are; copies them."""
  rounded = jax.jit(quantize)
  return jax.tree.map(lambda leaf, x: rounded(x) if is_matrix(leaf) else x,
                      like, params, is_leaf=is_matrix)


def to_devices(like: Any, where: Any, x: np.ndarray) -> Any:
  """Puts a parameter of the host on devices, quantised where `like` is. `like`
  are shape and type, `where` the sharding; two each of a `Matrix`."""
  def put(part, sharding):
    return jax.make_array_from_callback(part.shape, sharding,
                                        lambda at: part[at])

  x = on_host(x) if is_matrix(like) else x.astype(like.dtype, copy=False)
  placed = jax.tree.map(put, x, where)
  # Copies on the host would else add up while the devices fetch them.
  return jax.block_until_ready(placed)
