"""Options with which XLA compiles a generation for a CPU."""

import functools
import os

import jax

# What emitted fused kernels before, and one object file a program: compilation
# takes two thirds of the time, and a program is mapped into memory in a fifth
# of the pieces; see docs/performance.md.
_CPU_OPTIONS = {"xla_cpu_use_fusion_emitters": False,
                "xla_cpu_parallel_codegen_split_count": 1}


def options() -> dict:
  """Returns the `compiler_options` of `jax.jit`; none where XLA has its own.

  Options in the environment variable `XLA_FLAGS` go before.
  """
  if jax.default_backend() != "cpu":
    return {}
  return {name: value for name, value in _CPU_OPTIONS.items()
          if name not in os.environ.get("XLA_FLAGS", "") and _knows(name)}


@functools.cache
def _knows(name) -> bool:
  """Tells whether this version of XLA has an option."""
  option = {name: _CPU_OPTIONS[name]}
  try:
    jax.jit(lambda x: x, compiler_options=option).lower(0.0).compile()
    return True
  except jax.errors.JaxRuntimeError:
    return False
