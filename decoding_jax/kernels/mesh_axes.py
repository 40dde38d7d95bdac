"""Axes of a mesh that the compiler splits arrays over."""

import jax
from jax.sharding import AxisType


def split_by_compiler() -> dict[str, int]:
  """Returns the mesh axes that are left to the compiler, and their sizes.

  Returns:
    Those inside of a `jax.shard_map`; none elsewhere.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if AxisType.Manual not in mesh.axis_types:
    return {}
  return {name: size for name, size, kind in zip(
      mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
          if kind == AxisType.Auto}
