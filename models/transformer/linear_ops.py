"""Products with weights of a model, and rows of its tables, of any type."""

import jax
import jax.numpy as jnp

from decoding_jax import kernels
from models.transformer import quantization


def matmul(x, weights):
  """Returns `x @ weights.T` in float32.

  Args:
    x: `[..., in]`.
    weights: `[out, in]`; or a `quantization.Matrix`.

  Returns:
    `[..., out]` float32.
  """
  return matmuls(x, (weights,))[0]


def matmuls(x, weights):
  """Returns products with several matrices, on a CPU by one operation.

  Args:
    x: `[..., in]`.
    weights: a sequence of matrices as in `matmul`, all of one kind.

  Returns:
    A tuple of `[..., out]` float32.
  """
  if not quantization.is_matrix(weights[0]):
    return kernels.matmuls(x, weights)
  return kernels.matmuls(x, [w.values for w in weights],
                         [w.scales for w in weights])


def by_inputs(x, weights, parts):
  """Returns products of a part of the inputs each; their sum is `matmul`.

  Args:
    x: `[n, in]`.
    weights: `[out, in]`; or a `quantization.Matrix`.
    parts: how many; divides the inputs.

  Returns:
    `[parts, n, out]` float32.
  """
  split = lambda values: values.reshape(len(values), parts, -1)
  if quantization.is_matrix(weights):
    weights = weights.replace(values=split(weights.values))
    axes = quantization.Matrix(1, None)
  else:
    weights, axes = split(weights), 1
  return jax.vmap(matmul, (1, axes))(split(x), weights)


def lookup(table, index):
  """Returns rows of a table.

  Args:
    table: `[V, F]`; or a `quantization.Matrix`.
    index: `[...]` int32.

  Returns:
    `[..., F]`; float32 of a table of 8 bits.
  """
  # On a CPU XLA looks up what has 16 bits in float32. The barrier keeps it from
  # converting the whole table ahead of a loop.
  table, index = jax.lax.optimization_barrier((table, index))
  if quantization.is_matrix(table):
    table = jax.tree.map(lambda x: x[index], table)
    return quantization.dequantize(table, jnp.float32)
  return table[index]
