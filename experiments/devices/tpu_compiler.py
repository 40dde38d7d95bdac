"""TPUs that are not here: programs made for them by their own compiler.

It comes with `jax[tpu]`, and compiles without a TPU.
"""

import dataclasses
import importlib.util
import os
import re
from typing import NamedTuple

import jax
from jax.experimental import topologies
import jax.numpy as jnp

from decoding_jax.runtime import cache as cache_lib
from experiments.app import launch
from models import transformer

# The library asks the cloud which TPU it is on, unless these say so; and it
# lets one process at a time use a TPU, which none does here.
_NOWHERE = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
# What the compiler says of a program whose temporaries alone are too large.
_TOO_LARGE = re.compile(r"RESOURCE_EXHAUSTED: (.*)")
# Memory of a device by its kind, in GiB, as the makers have it.
_GIB = {"TPU v5 lite": 16, "TPU v5": 95, "TPU v6 lite": 32}
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ENTRY = re.compile(r"^ENTRY .*?^}", re.MULTILINE | re.DOTALL)


class Memory(NamedTuple):
  """Bytes of one device, by the compiler.

  Attributes:
    arguments: parameters, prompts and keys.
    temporaries: caches, and whatever comes and goes.
    results: texts and statistics.
    program: the instructions.
  """
  arguments: int
  temporaries: int
  results: int
  program: int


def devices(name):
  """Devices of a topology.

  Args:
    name: such as "v5e:4x4", chips of a slice; of "v5p:2x2x1" they have three
      axes.

  Returns:
    list of devices, which can be compiled for and have no memory. JAX must not
    have been used before: it will use the CPU, and no TPU that is here.

  Raises:
    UserError: if there is no such topology, or no compiler for it.
  """
  if importlib.util.find_spec("libtpu") is None:
    raise launch.UserError(
        f"--devices={name}: the compiler of TPUs is not installed; it comes "
        "with pip install 'jax[tpu]', on Linux.")
  for variable, value in _NOWHERE.items():
    os.environ.setdefault(variable, value)
  # What there is beside them is a CPU; a TPU that is here is left alone.
  jax.config.update("jax_platforms", "cpu")
  try:
    return list(topologies.get_topology_desc(
        platform="tpu", topology_name=name).devices)
  except jax.errors.JaxRuntimeError as e:
    raise launch.UserError(
        f"--devices={name} is no topology such as v5e:2x2, v6e:4x4 or "
        f"v5p:2x2x4, in whole machines: {e}") from e


def compile_(traced):
  """Compiles a program for the devices that its arguments are on.

  Args:
    traced: a `jax.stages.Traced`.

  Returns:
    A `jax.stages.Compiled`.

  Raises:
    UserError: if it does not fit into the memory of a device.
  """
  try:
    return traced.lower().compile()
  except jax.errors.JaxRuntimeError as e:
    found = _TOO_LARGE.search(str(e))
    if not found:
      raise
    raise launch.UserError(
        f"it does not fit: {found[1]} More of --mesh=model:N, a smaller "
        "--batch or shorter texts are needed.") from e


def capacity(device) -> int | None:
  """Bytes of memory that a device has; None for a kind that nobody listed."""
  size = _GIB.get(device.device_kind)
  return size and size * 2**30


def memory(compiled) -> Memory:
  """What a program needs.

  Args:
    compiled: a `jax.stages.Compiled`.

  Returns:
    A `Memory`.
  """
  found = compiled.memory_analysis()
  return Memory(found.argument_size_in_bytes, found.temp_size_in_bytes,
                found.output_size_in_bytes, found.generated_code_size_in_bytes)


def forward_cycles(config, device, batch, tokens, slots) -> int:
  """Cycles of a forward as the compiler has scheduled them, not measured.

  Args:
    config: architecture of a model without experts; two of its layers are
      compiled, all of them counted.
    device: of `devices`, which has whole layers.
    batch: B.
    tokens: T.
    slots: S of the cache.

  Returns:
    Their number; a program has no loops, so that each is counted.
  """
  one, two = (cycles(_forward(config, layers, device, batch, tokens, slots))
              for layers in (1, 2))
  return one + (config.num_layers - 1) * (two - one)


def cycles(compiled) -> int:
  """Those of a program without loops, as the compiler has scheduled them."""
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

  return compile_(jax.jit(forward, donate_argnums=4).trace(*arguments))
