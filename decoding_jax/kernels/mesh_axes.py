"""Axes of a mesh that the compiler splits arrays over, and split caches."""

import math
from typing import NamedTuple

import flax.struct
import jax
from jax.sharding import AxisType

# The axis of heads, from the end, in keys and in values.
HEADS = -3


def split_by_compiler() -> dict[str, int]:
  """Returns sizes of mesh axes that a `shard_map` leaves to the compiler."""
  mesh = jax.sharding.get_abstract_mesh()
  if AxisType.Manual not in mesh.axis_types:
    return {}
  return {name: size for name, size, axis_type in zip(
      mesh.axis_names, mesh.axis_sizes, mesh.axis_types)
          if axis_type == AxisType.Auto}


def is_on_one_device() -> bool:
  """Returns whether arrays are of one device, but for `split_by_compiler`. True
  inside of a `jax.shard_map`. Elsewhere the compiler may split any array."""
  mesh = jax.sharding.get_abstract_mesh()
  return AxisType.Manual in mesh.axis_types or jax.device_count() == 1


@flax.struct.dataclass
class SplitSlots:
  """Keys `[..., B, H, C, S]` or values `[..., B, H, S, C]` of a cache."""
  # `[..., B, s H, C, S / s]` or `[..., B, s H, S / s, C]`, each device having
  # an n-th of the axis of s H
  array: jax.Array
  ways: int = flax.struct.field(pytree_node=False)  # s, static
  # Of the slots, -1 or -2; static
  axis: int = flax.struct.field(pytree_node=False)

  @property
  def shape(self):
    """The shape of the keys or values, with all H and S."""
    sizes = list(self.array.shape)
    sizes[HEADS] //= self.ways
    sizes[self.axis] *= self.ways
    return tuple(sizes)

  @property
  def ndim(self):
    return self.array.ndim

  @property
  def dtype(self):
    return self.array.dtype


def is_split(x) -> bool:
  """Returns whether this is a `SplitSlots`, in a tree of arrays."""
  return isinstance(x, SplitSlots)


class Layout(NamedTuple):
  """Split of a cache: mesh axis, its n devices, s of the same heads."""
  axis: str | None
  number: int
  ways: int

  def position(self):
    """Returns which part of the heads this device has, and its first slot."""
    index = jax.lax.axis_index(self.axis)
    return index // self.ways, index % self.ways

  def groups(self):
    """Returns the devices that have the same heads."""
    return [list(range(i, i + self.ways))
            for i in range(0, self.number, self.ways)]


def layout_of(heads: int) -> Layout:
  """Returns how caches of `heads` heads are split where this is traced."""
  axes = split_by_compiler()
  axis, number = next(iter(axes.items())) if len(axes) == 1 else (None, 1)
  return Layout(axis, number, number // math.gcd(heads, number))
