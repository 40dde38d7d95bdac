"""What layers do with weights, in forms that are fast on a CPU as well."""

import functools

import jax
import jax.numpy as jnp

# Numbers of columns for which there are fast products.
_SIZES = (1, 4, 8, 16)


def columns(x):
  """Features first, tokens of all rows behind one another.

  Args:
    x: `[B, T, F]`.

  Returns:
    `[F, B * T]`.
  """
  # The reshape comes last: what follows a mere transposition has its layout,
  # for which XLA has no products in 16 bits on a CPU. It would use float32, and
  # a copy of all weights.
  return x.transpose(2, 0, 1).reshape(x.shape[2], -1)


def lookup(table, index):
  """Rows of a table.

  Args:
    table: `[V, F]`.
    index: `[...]` int32.

  Returns:
    `[..., F]`.
  """
  # On a CPU XLA looks up what has 16 bits in float32. Ahead of a loop it would
  # convert the whole table; the barrier makes it wait for the index.
  table, index = jax.lax.optimization_barrier((table, index))
  return table[index]


def matmul(kernel, x):
  """A product in float32, computed over a round number of columns.

  On a CPU the product with 7, 13 or 31 columns takes a third longer than that
  with 8, 16 or 32; elsewhere a few columns more cost nothing. With one column
  in 16 bits XLA would keep a copy of the weights in float32 there, but not with
  two.

  Args:
    kernel: `[out, in]`.
    x: `[in, n]`, of the same type.

  Returns:
    `[out, n]` float32.
  """
  width = x.shape[1]
  size = next((n for n in _SIZES if n >= width),
              -(-width // _SIZES[-1]) * _SIZES[-1])
  product = functools.partial(_padded, size)
  if width == 1 and kernel.dtype.itemsize < 4:
    return jax.lax.platform_dependent(
        kernel, x, cpu=functools.partial(_padded, 2), default=product)
  return product(kernel, x)


def _padded(size, kernel, x):
  width = x.shape[1]
  x = jnp.pad(x, ((0, 0), (0, size - width)))
  return jnp.matmul(kernel, x, preferred_element_type=jnp.float32)[:, :width]
