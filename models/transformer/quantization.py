"""Weights of fewer bits than activations have.

Of sixteen: bfloat16, for activations of float32. What a folder holds in
bfloat16 is computed in float32 so, with the same numbers as if all of it were
float32, and half of the bytes are read.

Of eight: whole numbers, and a scale for each output channel.
Symmetric, and rounded to the nearest (Jacob et al. 2018, arXiv 1712.05877, of
weights alone): the largest weight of a row, the weights of one output channel,
becomes 127 or -127. No weight is off by more than half of its row's scale.
Activations, norms, biases and caches keep their type.

A table of tokens has a scale a row as well, be it the output layer or looked up
alone: it is what a small model mostly consists of, and then needs no more room
than the rest.
"""

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import types

# What the weights of a `transformer.Config` can be: of its own type, or of
# sixteen or eight bits.
DTYPE, BFLOAT16, INT8 = "dtype", "bfloat16", "int8"
WEIGHTS = (DTYPE, BFLOAT16, INT8)
_LARGEST = 127
# A row without a larger weight is one of zeros: the inverse of its scale might
# be infinite.
_SMALLEST = 1e-30
# Weights that are quantised at once on the host, where they are float32.
_AT_ONCE = 2**20


@flax.struct.dataclass
class Matrix:
  """The matrix `values * scales`, or several.

  Attributes:
    values: `[..., out, in]` int8, -127 to 127.
    scales: `[..., out, 1]` float32, at least 0.
  """
  values: types.Array
  scales: types.Array


def is_matrix(x) -> bool:
  """Whether this part of a tree of parameters is a `Matrix`."""
  return isinstance(x, Matrix)


def shape(x) -> tuple[int, ...]:
  """Of a matrix, be it an array or a `Matrix`."""
  return (x.values if is_matrix(x) else x).shape


def quantize(x) -> Matrix:
  """Rounds a matrix.

  Args:
    x: `[..., out, in]`, of numpy or of JAX, and so is the result.

  Returns:
    A `Matrix`, each of whose weights is within half of a scale of `x`, but for
    roundings of float32.
  """
  x = x.astype(np.float32)
  largest = abs(x).max(axis=-1, keepdims=True)
  # Products, for XLA makes such of quotients and would round as numpy does not.
  scales = largest * (largest > _SMALLEST) * np.float32(1 / _LARGEST)
  values = x * (1 / (scales + (scales == 0)))
  return Matrix(values.round().astype(np.int8), scales)


def on_host(x: np.ndarray) -> Matrix:
  """`quantize` with little memory beside matrix and result."""
  rows = x.reshape(-1, x.shape[-1])
  values = np.empty(rows.shape, np.int8)
  scales = np.empty((len(rows), 1), np.float32)
  step = max(_AT_ONCE // rows.shape[1], 1)
  for start in range(0, len(rows), step):
    part = slice(start, start + step)
    found = quantize(rows[part])
    values[part], scales[part] = found.values, found.scales
  return Matrix(values.reshape(x.shape), scales.reshape(*x.shape[:-1], 1))


def dequantize(matrix: Matrix, dtype) -> types.Array:
  """The matrix in a type of floating point numbers."""
  return (matrix.values.astype(jnp.float32) * matrix.scales).astype(dtype)


def initializer(init, weights: str):
  """What a parameter begins with, where it may be a `Matrix`.

  Args:
    init: `(key, shape, dtype) -> array`.
    weights: one of `WEIGHTS`.

  Returns:
    `(key, shape, dtype) -> array or Matrix`.
  """
  if weights == BFLOAT16:
    return lambda key, shape, dtype: init(key, shape, jnp.bfloat16)
  return init if weights == DTYPE else lambda *args: quantize(init(*args))


def check_whole(weights: str, what: str) -> None:
  """Raises `ValueError` unless weights have the type of their model.

  Args:
    weights: one of `WEIGHTS`.
    what: is to become of the model, such as "saved".
  """
  if weights != DTYPE:
    raise ValueError(f"weights={weights!r}: a model can be {what} with "
                     f"weights={DTYPE!r} alone; give others when it is loaded.")


def tree(like: types.Params, params: types.Params) -> types.Params:
  """Quantises parameters, one after the other.

  Args:
    like: parameters of the same model in eight bits, or their shapes.
    params: those to quantise, arrays of JAX; they stay as they are.

  Returns:
    Parameters, in which what has a `Matrix` in `like` is one.
  """
  rounded = jax.jit(quantize)
  return jax.tree.map(lambda kind, x: rounded(x) if is_matrix(kind) else x,
                      like, params, is_leaf=is_matrix)


def place(like: Any, where: Any, x: np.ndarray) -> Any:
  """Puts a parameter of the host on devices, rounded if it is to be.

  Args:
    like: its shape and type, or those of a `Matrix`.
    where: its `jax.sharding.Sharding`, or a `Matrix` of two.
    x: the parameter.

  Returns:
    An array of JAX, or a `Matrix` of two.
  """
  def put(part, sharding):
    return jax.make_array_from_callback(part.shape, sharding,
                                        lambda at: part[at])

  x = on_host(x) if is_matrix(like) else x.astype(like.dtype, copy=False)
  placed = jax.tree.map(put, x, where)
  # Else the host's copies would add up while the devices fetch them.
  return jax.block_until_ready(placed)
