"""Shapes of meshes: how many devices for "data", how many for "model"."""

import itertools
import math
import re

import jax
from jax.experimental import mesh_utils
import numpy as np

from decoding_jax import roles
from decoding_jax.validation import memory
from models import transformer
from models.transformer import sharding

AUTO = "auto"
# How layers of a draft model may be: on all devices of "model", or split.
DRAFTS = REPLICATED, SPLIT = "replicated", "split"
# The XLA flag by which a user sets the number of CPU devices.
DEVICE_COUNT = "xla_force_host_platform_device_count"
# What a device reads while it waits for a sum over devices: 10 microseconds at
# 1.6 TB/s, in the middle of accelerators by their specifications.
_BYTES_OF_A_SUM = 16 << 20
# Weights of a matrix from which on its products use several cores.
_LARGE = 2**18
_AXES = (sharding.DATA, sharding.MODEL)
# What a description begins with where the drafter has devices of its own.
_ROLES = f"{roles.ROLE}:2"


def sizes(value, config, batch, count, groups=1):
  """Returns allowed "data" and "model" sizes, the best first."""
  # "auto" takes as many devices as can be used, and as many of them for rows as
  # memory allows. `groups` is 2 with roles, which take as many meshes.
  if value == AUTO:
    return _auto(config, batch, count // groups)
  return [_parsed(value, config, batch, count, groups)]


def axes(value):
  """Returns sizes of "data" and "model"; arguments and errors as in `sizes`."""
  parts = [re.fullmatch(r"(\w+):(\d+)", part) for part in value.split(",")]
  sizes = {part[1]: int(part[2]) for part in parts if part}
  if (len(sizes) < len(parts) or not set(sizes) <= set(_AXES)
      or 0 in sizes.values()):
    raise ValueError(f"--mesh={value}: data:N, model:N, both with a comma "
                     f"between, or {AUTO} is needed.")
  return [sizes.get(axis, 1) for axis in _AXES]


def without_roles(value):
  """Returns whether a description has the axis "role", and the rest of it."""
  parts = value.split(",")
  named = [part for part in parts if part.startswith(roles.ROLE)]
  if named not in ([], [_ROLES]):
    raise ValueError(f"--mesh={value}: {_ROLES} is needed, one group of "
                     "devices for the target and one for the drafter; data and "
                     "model say how many each has.")
  if not named:
    return False, value
  rest = [part for part in parts if part not in named]
  return True, ",".join(rest) or f"{sharding.DATA}:1"


def _parsed(value, config, batch, count, groups):
  def fail(what):
    asked = value if groups == 1 else f"{_ROLES},{value}"
    raise ValueError(f"--mesh={asked}: {what}")

  data, model = axes(value)
  needed = groups * data * model
  if needed > count:
    fail(f"{needed} devices are needed, there are {count}. Of a CPU each core "
         f"is one; XLA_FLAGS=--{DEVICE_COUNT}={needed} makes more.")
  if data * model < count and jax.process_count() > 1:
    fail(f"several processes use all {count} devices, not {data * model}.")
  if batch % data:
    fail(f"data:{data} does not divide the batch of {batch} rows.")
  try:
    sharding.check(config, model)
  except ValueError as e:
    fail(e)
  return data, model


def _auto(config, batch, count):
  splits = [(data, model) for model in sharding.partition(config)
            for data in range(1, count // model + 1) if not batch % data]
  used = max(map(math.prod, splits))
  if used < count and jax.process_count() > 1:
    raise ValueError(
        f"--mesh={AUTO}: several processes use all {count} devices, but a "
        f"batch of {batch} rows and num_heads={config.num_heads} allow {used} "
        "at most.")
  return sorted((shape for shape in splits if math.prod(shape) == used),
                reverse=True)


def draft_size(value, config, size):
  """Returns how many of `size` devices split layers of a draft; 1: none."""
  # "auto" splits layers that are read for longer than their sums are waited
  # for, and can be split. Raises a `ValueError` if "split" cannot.
  if value == REPLICATED or (value == AUTO and not _gains(config, size)):
    return 1
  try:
    sharding.check(config, size)
  except ValueError as e:
    raise ValueError(f"--draft_mesh={value}: {e}") from e
  return size


def split_size(config, size):
  """Returns `size`, or 1 for layers that cannot be split so."""
  return size if size in sharding.partition(config) else 1


def _gains(config, size):
  if split_size(config, size) == 1:
    return False
  layers = memory.size(transformer.abstract_params(config)["layers"])
  # Two a layer; the embedding's would be there in any case.
  return layers * (1 - 1 / size) > 2 * config.num_layers * _BYTES_OF_A_SUM


def host_devices(value, config, batch, cores):
  """Returns how many devices a CPU should have: no more than `cores`."""
  # With "auto" as many as divide the rows, if a layer is too small for one
  # product to use several cores; else 1, since each device would read all
  # weights and gain nothing.
  if value != AUTO:
    return min(math.prod(map(int, re.findall(r":(\d+)", value))), cores) or 1
  if config.dim * config.hidden_dim >= _LARGE:
    return 1
  return max(n for n in range(1, cores + 1) if not batch % n)


def make(shape, devices=None):
  """Makes a mesh of "data" and "model" of the first devices."""
  return jax.sharding.Mesh(arranged(devices or jax.devices(), shape), _AXES,
                           axis_types=(jax.sharding.AxisType.Auto,) * 2)


def make_roles(shape):
  """Makes a mesh of two groups of devices, each of the given shape."""
  size, devices = math.prod(shape), jax.devices()
  groups = [make(shape, devices[i * size:(i + 1) * size]).devices
            for i in range(2)]
  return jax.sharding.Mesh(np.stack(groups), (roles.ROLE, *_AXES),
                           axis_types=(jax.sharding.AxisType.Auto,) * 3)


def has_roles(mesh) -> bool:
  """Returns whether the drafter has devices of its own; of None too."""
  return mesh is not None and roles.ROLE in mesh.axis_names


def arranged(devices, shape):
  """Arranges devices; one index of "data" has devices near each other."""
  # Allows what `jax.make_mesh` refuses: slices connected by a slower network,
  # such as the machines of a GPU cluster, and parts of the axes of a TPU slice
  # other than v5e. Rows exchange nothing, so they may be anywhere.
  order = lambda device: (getattr(device, "slice_index", None) or 0, device.id)
  devices = sorted(devices, key=order)
  parts = [list(part) for _, part in
           itertools.groupby(devices, lambda device: order(device)[0])]
  data, model = shape
  if data * model < len(devices) or data % len(parts) or (
      len(set(map(len, parts))) > 1):
    return np.array(devices[:data * model]).reshape(shape)
  return np.concatenate([mesh_utils.create_device_mesh(
      (data // len(parts), model), part, allow_split_physical_axes=True)
                         for part in parts])


def text(mesh) -> str:
  """Describes a mesh as `--mesh` does: "data:4,model:2"; "" without one."""
  return "" if mesh is None else ",".join(
      f"{axis}:{size}" for axis, size in mesh.shape.items())


def multiple(mesh) -> int:
  """Returns the number that must divide a batch."""
  return 1 if mesh is None else mesh.shape[sharding.DATA]
