"""TPUs that are not here, and the cycles that their compiler schedules."""

import atexit
import dataclasses
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import tempfile

import jax
from jax.experimental import topologies
import jax.numpy as jnp

from decoding_jax import kernels
from decoding_jax.runtime import cache as cache_lib
from experiments.app import launch
from experiments.devices import device_compiler
from models import transformer

# Without these the library asks the cloud which TPU it is on, and keeps other
# processes from using it.
_NOWHERE = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost",
            "TPU_ACCELERATOR_TYPE": "v5litepod-4",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
# Bytes of memory read in a cycle, by the specification.
_BYTES = {"TPU v5 lite": 546, "TPU v5": 1580, "TPU v6 lite": 937}
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_ENTRY = re.compile(r"^ENTRY .*?^}", re.MULTILINE | re.DOTALL)
# A kernel of Pallas, of which the compiler counts no cycles: its arguments and
# the bytes that it reads. And its schedule, which the compiler writes into a
# file: the arguments again, the first instruction of the grid's loop, the jump
# back to it, its turns.
_KERNEL = re.compile(r'custom_call_target="tpu_custom_call".*?'
                     r'operand_layout_constraints={(.*?)}, \w+=.*?'
                     r'"bytes_accessed":"(\d+)"')
_SHAPE = re.compile(r"\w+\[[\d,]*\]")
_ARGUMENT = re.compile(r"\[shape: (\w+\[[\d,]*\]), index: (\d+), kind: input")
_SCHEDULE = "packed-bundles-post-ra"
_BUNDLE = re.compile(r"^ *(0x[0-9a-f]+|0) .*$", re.MULTILINE)
_LOOP = re.compile(r"^ *(0x[0-9a-f]+) +LB: > ", re.MULTILINE)
_JUMP = r"^ *(0x[0-9a-f]+) .*sbr\.rel .*target bundleno = {}[ ,]"
_TURNS = re.compile(r", (\d+) /\* loop exit test")


def installed() -> bool:
  """Returns whether there is a compiler of TPUs."""
  return importlib.util.find_spec("libtpu") is not None


def devices(name):
  """Returns the devices of a topology such as "v5e:4x4" or "v5p:2x2x1"."""
  # JAX must not have been used before; from then on it uses the CPU.
  if not installed():
    raise launch.UserError(
        f"--devices={name}: the compiler of TPUs is not installed; it comes "
        "with pip install 'jax[tpu]', on Linux.")
  for variable, value in _NOWHERE.items():
    os.environ.setdefault(variable, value)
  os.environ["LIBTPU_INIT_ARGS"] = " ".join((
      os.environ.get("LIBTPU_INIT_ARGS", ""),
      f"--xla_jf_dump_to={_schedules()}",
      "--xla_jf_dump_llo_text=true",
      f"--xla_jf_dump_llo_pass_label_regex={_SCHEDULE}"))
  # Leave a TPU of this machine alone.
  jax.config.update("jax_platforms", "cpu")
  kernels.compile_for("tpu")
  try:
    return list(topologies.get_topology_desc(
        platform="tpu", topology_name=name).devices)
  except jax.errors.JaxRuntimeError as e:
    raise launch.UserError(
        f"--devices={name} is no topology such as v5e:2x2, v6e:4x4 or "
        f"v5p:2x2x4, in whole machines: {e}") from e


def forward_cycles(config, device, batch, tokens, slots) -> int:
  """Counts the scheduled cycles of a forward of B x T tokens."""
  # Programs of one and of two layers are compiled, and extrapolated to all. Not
  # measured; layers are not split, and there are no experts.
  one, two = (
      cycles(_forward(config, layers, device, batch, tokens, slots), device)
      for layers in (1, 2))
  return one + (config.num_layers - 1) * (two - one)


def cycles(compiled, device=None) -> int:
  """Counts scheduled cycles, without loops; `device` is for Pallas alone."""
  entry = _ENTRY.search(compiled.as_text())[0]
  return sum(map(int, _CYCLES.findall(entry))) + sum(
      _of_kernel(_SHAPE.findall(arguments), int(size), device)
      for arguments, size in _KERNEL.findall(entry))


def _of_kernel(arguments, size, device):
  """Returns the cycles of a kernel, or those in which its data are read."""
  # Of equal kernels there is one schedule, under the name of the first.
  texts = (path.read_text("utf-8") for path in _schedules().glob(
      f"*flash_attention*-{_SCHEDULE}.txt")
           if "schedule-analysis" not in path.name)
  # Arguments that are not used are missing there.
  text = next(x for x in texts if all(
      arguments[int(i)] == shape for shape, i in _ARGUMENT.findall(x)))
  return max(of_schedule(text),
             size // _BYTES.get(device.device_kind, max(_BYTES.values())))


def of_schedule(text) -> int:
  """Counts the cycles of a kernel's schedule, all branches taken."""
  bundles = [int(x, 16) for x in _BUNDLE.findall(text)]
  loop = _LOOP.search(text)
  if not loop:  # A grid of one step.
    return len(bundles)
  first = int(loop[1], 16)
  last = int(re.search(_JUMP.format(first), text, re.MULTILINE)[1], 16)
  turns = int(_TURNS.search(text)[1])
  return len(bundles) + (turns - 1) * (last - first + 1)


@functools.cache
def _schedules():
  """Returns a folder for schedules that goes with the process."""
  folder = pathlib.Path(tempfile.mkdtemp(prefix="decoding_jax-schedules-"))
  atexit.register(shutil.rmtree, folder, ignore_errors=True)
  return folder


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
