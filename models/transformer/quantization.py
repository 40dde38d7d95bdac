"""Weights of fewer bits than activations have.

bfloat16, for float32 activations: half of the bytes are read, with the results
of the same weights in float32.

int8, symmetric with a float32 scale for each output channel (Jacob et al. 2018,
arXiv 1712.05877, weights only): the largest weight becomes 127 or -127, and no
weight is off by more than half of its scale. Activations, norms, biases and
caches keep their type. The embedding has a scale for each token.

int4, in groups of 32 inputs with a scale and a least weight each (as GGUF's
Q4_1; the embedding and the output layer have 8 bits in groups), and stored, a
GGUF file's own groups: both are rounded to the activations' type where they are
multiplied, so that a model as it is stored has the outputs of the same file
loaded in that type.
"""

from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import kernels
from decoding_jax import types

# Weights of a `transformer.Config`: of its own type, or of 16, 8 or 4 bits, or
# as a GGUF file has them.
DTYPE, BFLOAT16, INT8, INT4, STORED = ("dtype", "bfloat16", "int8", "int4",
                                       "stored")
WEIGHTS = (DTYPE, BFLOAT16, INT8, INT4, STORED)
# Inputs of a group.
GROUP = 32
_LARGEST = 127
# A row without a larger weight becomes zeros: the inverse of its scale might be
# infinite.
_SMALLEST = 1e-30
# Weights that are quantised at a time on the host, where they are float32.
_AT_ONCE = 2**20


@flax.struct.dataclass
class Matrix:
  """A matrix, or several, see `kernels.dequantized`: int8 `values [..., out,
  in]` with float32 `scales [..., out, 1]`; or values in groups."""
  values: types.Array  # Or uint8 `[..., out, in / 2]`, of two inputs
  scales: types.Array  # Or `[..., out, groups]`, float16 or float32
  least: types.Array | None = None  # Like scales of groups


class Format(NamedTuple):
  """How numbers of a `Matrix` are kept."""
  bits: int = 8  # Or 4, with a least number of each group
  groups: int = 1  # Of the inputs of a row


def format_of(matrix: Matrix) -> Format:
  """Returns the format of a matrix, or of its shapes."""
  return Format(4 if matrix.values.dtype == np.uint8 else 8,
                matrix.scales.shape[-1])


def is_matrix(x) -> bool:
  """Returns whether this part of a tree of parameters is a `Matrix`."""
  return isinstance(x, Matrix)


def shape(x) -> tuple[int, ...]:
  """Returns the shape of a matrix, an array or a `Matrix`."""
  if not is_matrix(x):
    return x.shape
  *outer, inputs = x.values.shape
  return *outer, inputs * 8 // format_of(x).bits


def quantize(x, how: Format = Format()) -> Matrix:
  """Rounds `[..., out, in]`, of numpy or of JAX, and so is the result. Weights
  are within half of a scale of `x`, up to roundings of float32, and of what
  groups have to 16 bits."""
  x = x.astype(np.float32)
  if how == Format():
    return _by_rows(x)
  x = x.reshape(*x.shape[:-1], how.groups, -1)
  return _four_bits(x) if how.bits == 4 else _by_groups(x)


def _by_rows(x):
  largest = abs(x).max(axis=-1, keepdims=True)
  # Products: XLA computes quotients as such, and would round as numpy does not.
  scales = largest * (largest > _SMALLEST) * np.float32(1 / _LARGEST)
  return Matrix(_in_units(x, scales[..., 0]).astype(np.int8), scales)


def _by_groups(x):
  """Rounds `[..., out, groups, size]` to int8."""
  scales = (abs(x).max(axis=-1) * np.float32(1 / _LARGEST)).astype(np.float16)
  values = _in_units(x, scales).clip(-_LARGEST, _LARGEST).astype(np.int8)
  return Matrix(values.reshape(*x.shape[:-2], -1), scales)


def _four_bits(x):
  """Rounds `[..., out, groups, 32]` to two numbers in a byte."""
  least = x.min(axis=-1).astype(np.float16)
  above = x - least[..., None].astype(np.float32)
  scales = (above.max(axis=-1) * np.float32(1 / 15)).astype(np.float16)
  values = _in_units(above, scales).clip(0, 15).astype(np.uint8)
  lower, upper = values[..., :GROUP // 2], values[..., GROUP // 2:]
  return Matrix((lower | (upper << 4)).reshape(*x.shape[:-2], -1), scales,
                least)


def _in_units(x, scales):
  units = scales[..., None].astype(np.float32)
  return (x * (1 / (units + (units == 0)))).round()


def on_host(x: np.ndarray, how: Format = Format()) -> Matrix:
  """Does what `quantize` does, with little memory besides matrix and result."""
  rows = x.reshape(-1, x.shape[-1])
  step = max(_AT_ONCE // rows.shape[1], 1)
  parts = [quantize(rows[start:start + step], how)
           for start in range(0, len(rows), step)]
  return jax.tree.map(lambda *some: np.concatenate(some).reshape(
      *x.shape[:-1], -1), *parts)


def dequantize(matrix: Matrix, dtype) -> types.Array:
  """Returns the matrix in a floating-point type."""
  return kernels.dequantized(matrix.values, matrix.scales, matrix.least, dtype)


def initializer(init, weights: str, is_table: bool = False):
  """Returns `(key, shape, dtype) -> array`, or `-> Matrix`. `is_table`: of the
  embedding or an output layer."""
  if weights == BFLOAT16:
    return lambda key, shape, dtype: init(key, shape, jnp.bfloat16)
  if weights == DTYPE:
    return init
  return lambda key, shape, dtype: quantize(
      init(key, shape, dtype), _format(shape, weights, is_table))


def _format(shape, weights, is_table):
  if weights == INT8 or shape[-1] % GROUP:
    return Format()  # By rows, where inputs cannot be divided.
  return Format(8 if is_table else 4, shape[-1] // GROUP)


def check_whole(weights: str, what: str) -> None:
  """Raises ValueError unless weights have the model's type; `what`: "saved"."""
  if weights != DTYPE:
    raise ValueError(f"weights={weights!r}: a model can be {what} with "
                     f"weights={DTYPE!r} alone; give others when it is loaded.")


def tree(like: types.Params, params: types.Params) -> types.Params:
  """Quantises parameters one by one, as matrices of `like` are; copies them."""
  rounded = jax.jit(quantize, static_argnums=1)
  return jax.tree.map(
      lambda leaf, x: rounded(x, format_of(leaf)) if is_matrix(leaf) else x,
      like, params, is_leaf=is_matrix)


def to_devices(like: Any, where: Any, x: np.ndarray) -> Any:
  """Puts a parameter of the host on devices, quantised where `like` is, unless
  it already is. `like` are shape and type, `where` the sharding, of a `Matrix`
  of each array, or of all."""
  def put(part, sharding):
    return jax.make_array_from_callback(part.shape, sharding,
                                        lambda at: part[at])

  if is_matrix(like) and not is_matrix(x):
    x = on_host(x, format_of(like))
  elif not is_matrix(x):
    x = x.astype(like.dtype, copy=False)
  if isinstance(where, jax.sharding.Sharding):
    where = jax.tree.map(lambda _: where, x)
  placed = jax.tree.map(put, x, where)
  # Copies on the host would else add up while the devices fetch them.
  return jax.block_until_ready(placed)
