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
  """Returns products with several matrices, on a CPU by one operation where
  all have one format; `sliced` and `dtype` as in `kernels.matmuls`."""
  if len(set(map(_format, weights))) > 1:
    return tuple(matmuls(x, (w,), sliced, dtype)[0] for w in weights)
  if not quantization.is_matrix(weights[0]):
    return kernels.matmuls(x, weights, sliced=sliced, dtype=dtype)
  least = [w.least for w in weights if w.least is not None]
  return kernels.matmuls(x, [w.values for w in weights],
                         [w.scales for w in weights], sliced, dtype, least)


def _format(w):
  """Returns what products of one operation have in common."""
  return tuple((x.dtype, x.shape[1:]) for x in jax.tree.leaves(w))


def by_inputs(x, weights, parts, sliced=False):
  """Returns `[parts, n, out]` of a part of the inputs each; they add up."""
  has_parts = lambda w: w.shape[-1] > 1  # One scale of a row is all parts'.
  split = lambda w: w.reshape(len(w), parts, -1) if has_parts(w) else w
  axes = jax.tree.map(lambda w: 1 if has_parts(w) else None, weights)
  product = lambda x, weights: matmuls(x, (weights,), sliced)[0]
  return jax.vmap(product, (1, axes))(split(x), jax.tree.map(split, weights))


def lookup(table, index):
  """Returns rows `[..., F]` of a table; float32 of a table of 8 bits."""
  # On a CPU XLA looks up what has 16 bits in float32. The barrier keeps it from
  # converting the whole table ahead of a loop.
  table, index = jax.lax.optimization_barrier((table, index))
  if quantization.is_matrix(table):
    table = jax.tree.map(lambda x: x[index], table)
    return quantization.dequantize(table, jnp.float32)
  return table[index]
