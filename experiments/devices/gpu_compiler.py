"""Compiles programs for GPUs without a GPU, by the compiler of `jax[cuda13]`.

That compiler gives no cycles, but the kernels of a step and their bytes.
"""

import importlib.util

import jax
from jax.experimental import topologies

from decoding_jax import kernels
from experiments.app import launch
from experiments.devices import device_compiler

# Devices of which there is a description.
_GPUS = ("h100", "h200")
# Both are of compute capability 9.0, with equally many cores of one type.
_HOPPER = """
gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448
  threads_per_core_limit: 2048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  clock_rate_ghz: 1.98
  l2_cache_size: 52428800
  device_memory_size: {memory}
  memory_bandwidth: {bandwidth}
  cuda_compute_capability {{ major: 9 }}
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "NVIDIA {name}"
"""


def model(name) -> device_compiler.Sheet | None:
  """Returns the GPU that `--devices` names; None if it names none."""
  gpu, _, number = name.lower().partition(":")
  return device_compiler.sheet(name)[0] if gpu in _GPUS and number else None


def installed() -> bool:
  """Returns whether there is a compiler of GPUs."""
  return any(map(importlib.util.find_spec,
                 ("jax_cuda13_plugin", "jax_cuda12_plugin")))


def devices(name):
  """Returns GPUs of one machine, such as "h100:8" or "h100:1x8"."""
  # JAX must not have been used before; from then on it uses the CPU.
  if not installed():
    raise launch.UserError(
        f"--devices={name}: the compiler of GPUs is not installed; it comes "
        "with pip install 'jax[cuda13]', on Linux.")
  # Leave a GPU of this machine alone.
  jax.config.update("jax_platforms", "cpu")
  kernels.compile_for("gpu")
  gpu, count = device_compiler.sheet(name)
  description = _HOPPER.format(name=name.split(":")[0].upper(),
                               **gpu._asdict())
  return list(topologies.get_topology_desc(
      platform="cuda", target_config=description,
      topology=f"1x1x{count}").devices)
