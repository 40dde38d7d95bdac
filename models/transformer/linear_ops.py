"""Products with weights of a model, and rows of its tables, of any type."""

import jax
import jax.numpy as jnp

from decoding_jax import kernels
from models.transformer import quantization


def matmul(x, weights):
  """Returns `x [..., in] @ weights.T` as `[..., out]` float32. Weights are
  `[out, in]`, or a `quantization.Matrix`; so they are below."""
  return matmuls(x, (weights,))[0]


def matmuls(x, weights, sliced=False, dtype=jnp.float32):
  """Returns products with several matrices, on a CPU by one operation. All are
  of one type; `sliced` and `dtype` as in `kernels.matmuls`."""
  if not quantization.is_matrix(weights[0]):
    return kernels.matmuls(x, weights, sliced=sliced, dtype=dtype)
  return kernels.matmuls(x, [w.values for w in weights],
                         [w.scales for w in weights], sliced, dtype)


def by_inputs(x, weights, parts, sliced=False):
  """Returns `[parts, n, out]` of a part of the inputs each; they add up."""
  split = lambda values: values.reshape(len(values), parts, -1)
  if quantization.is_matrix(weights):
    weights = weights.replace(values=split(weights.values))
    axes = quantization.Matrix(1, None)
  else:
    weights, axes = split(weights), 1
  product = lambda x, weights: matmuls(x, (weights,), sliced)[0]
  return jax.vmap(product, (1, axes))(split(x), weights)


def lookup(table, index):
  """Returns rows `[..., F]` of a table; float32 of a table of 8 bits."""
  # On a CPU XLA looks up what has 16 bits in float32. The barrier keeps it from
  # converting the whole table ahead of a loop.
  table, index = jax.lax.optimization_barrier((table, index))
  if quantization.is_matrix(table):
    table = jax.tree.map(lambda x: x[index], table)
    return quantization.dequantize(table, jnp.float32)
  return table[index]
