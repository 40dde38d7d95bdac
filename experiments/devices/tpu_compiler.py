"""TPUs that are not here, and the cycles that their compiler schedules."""

import dataclasses
import importlib.util
import os
import re

import jax
from jax.experimental import topologies
import jax.numpy as jnp

from decoding_jax.runtime import cache as cache_lib
from experiments.app import launch
from experiments.devices import device_compiler
from models import transformer

# Without these the library asks the cloud which TPU it is on, and keeps other
# processes from using it.
_NOWHERE = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
# Memory of a device by its kind in GiB, by its specification.
_GIB = {"TPU v5 lite": 16, "TPU v5": 95, "TPU v6 lite": 32}
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ENTRY = re.compile(r"^ENTRY .*?^}", re.MULTILINE | re.DOTALL)


def devices(name):
  """Returns the devices of a topology, to compile for.

  JAX must not have been used before; from then on it uses the CPU.

  Args:
    name: chips of a slice such as "v5e:4x4", or, with three axes, "v5p:2x2x1".

  Returns:
    list of devices without memory.

  Raises:
    UserError: if there is no such topology, or no compiler for it.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise launch.UserError(
        f"--devices={name}: the compiler of TPUs is not installed; it comes "
        "with pip install 'jax[tpu]', on Linux.")
  for variable, value in _NOWHERE.items():
    os.environ.setdefault(variable, value)
  # Leave a TPU of this machine alone.
  jax.config.update("jax_platforms", "cpu")
  try:
    return list(topologies.get_topology_desc(
        platform="tpu", topology_name=name).devices)
  except jax.errors.JaxRuntimeError as e:
    raise launch.UserError(
        f"--devices={name} is no topology such as v5e:2x2, v6e:4x4 or "
        f"v5p:2x2x4, in whole machines: {e}") from e


def capacity(device) -> int | None:
  """Returns the bytes of memory of a device; None for an unknown kind."""
  size = _GIB.get(device.device_kind)
  return size and size * 2**30


def forward_cycles(config, device, batch, tokens, slots) -> int:
  """Counts the cycles of a forward that the compiler has scheduled.

  Args:
    config: architecture of a model without experts; programs of one and of two
      layers are compiled, and extrapolated to all.
    device: of `devices`; its layers are not split.
    batch: B.
    tokens: T.
    slots: S of the cache.

  Returns:
    Number of cycles; not measured.
  """
  one, two = (cycles(_forward(config, layers, device, batch, tokens, slots))
              for layers in (1, 2))
  return one + (config.num_layers - 1) * (two - one)


def cycles(compiled) -> int:
  """Counts the scheduled cycles of a program without loops."""
  return sum(map(int, _CYCLES.findall(_ENTRY.search(compiled.as_text())[0])))


def _forward(config, layers, device, batch, tokens, slots):
  config = dataclasses.replace(config, num_layers=layers, scan_layers=False)
  lm = transformer.language_model(config)
  cache = jax.eval_shape(lambda: lm.init_cache(batch, slots))
  ids = jax.ShapeDtypeStruct((batch, tokens), jnp.int32)
  arguments = jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(
          x.shape, x.dtype, sharding=jax.sharding.SingleDeviceSharding(device)),
      (transformer.abstract_params(config), ids, ids, cache,
       jax.eval_shape(lambda: cache_lib.init_block(cache, tokens)),
       jax.ShapeDtypeStruct((batch, tokens, tokens), bool)))

  def forward(params, ids, positions, cache, block, mask):
    return lm.forward(params, ids, positions, cache, block, 0, mask)

  return device_compiler.compile_(
      jax.jit(forward, donate_argnums=4).trace(*arguments))
