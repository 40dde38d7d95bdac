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


def is_on_one_device() -> bool:
  """Returns whether a function is traced for arrays of a single device.

  Returns:
    True inside of a `jax.shard_map`, but for the axes of `split_by_compiler`,
    and where there is one device. Elsewhere the compiler may split any array.
  """
  mesh = jax.sharding.get_abstract_mesh()
  return AxisType.Manual in mesh.axis_types or jax.device_count() == 1
