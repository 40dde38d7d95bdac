"""Parts of arrays."""

import jax.numpy as jnp


def take(x, indices, axis):
  """`jnp.take_along_axis` of indices that are all there.

  By default JAX would look for those that are not and fill in NaN, in an
  operation more over all that is taken.

  Args:
    x: any array.
    indices: of as many axes, which broadcast to those of `x`.
    axis: which one is indexed.

  Returns:
    As large as `indices` along the axis.
  """
  return jnp.take_along_axis(x, indices, axis=axis, mode="clip")
