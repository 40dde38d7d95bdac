"""The only file that branches on a platform or defines derivatives."""

import functools
import inspect
import os

import jax

# Platforms that programs are compiled for ahead of time.
_ahead = set()
# What emitted fused kernels before, and one object file a program: compilation
# takes two thirds of the time, and a program is mapped into memory in a fifth
# of the pieces; see docs/performance.md.
_CPU_OPTIONS = {"xla_cpu_use_fusion_emitters": False,
                "xla_cpu_parallel_codegen_split_count": 1}


def on_cpu(reference, kernel, fits):
  """Returns a function that runs a native kernel on a CPU where it can.

  Elsewhere, and for arguments that the kernel does not know, it runs the
  reference: a kernel refuses what it does not know, and never ignores it. So an
  argument that is added to the reference alone takes effect at once.
  Under differentiation the reference computes both values and derivatives.

  Args:
    reference: `(*arrays, **static) -> arrays` in plain JAX. Arrays, or trees of
      them, are positional; what the program is compiled for is a keyword, which
      can be hashed.
    kernel: computes the same on a CPU, by `decoding_jax.kernels.cpu`.
    fits: returns whether the kernel can be called for these arguments; it is
      asked while a program is traced.

  Returns:
    A function with the signature of the reference.
  """
  @functools.lru_cache(typed=True)
  def branches(**static):
    # The same functions for the same keywords: JAX traces them once for arrays
    # of a shape, and not again in each layer and in each program.
    plain = functools.partial(reference, **static)
    return plain, with_derivatives_of(plain, functools.partial(kernel,
                                                               **static))

  @functools.wraps(reference)
  def call(*arrays, **static):
    if not (_takes(kernel, arrays, static) and fits(*arrays, **static)):
      return reference(*arrays, **static)
    plain, native = branches(**static)
    return jax.lax.platform_dependent(*arrays, default=plain, cpu=native)

  return call


def with_derivatives_of(reference, kernel):
  """Returns a kernel that is differentiated as its reference is.

  Both are functions of arrays, or trees of them.
  """
  native = jax.custom_jvp(kernel)
  native.defjvp(functools.partial(jax.jvp, reference))
  return native


def compile_for(platform: str) -> None:
  """Has programs traced from now on be fit for "tpu" or "gpu".

  What has been traced before is forgotten, since layers are traced once.
  """
  if not compiles_for(platform):
    _ahead.add(platform)
    jax.clear_caches()


def compiles_for(platform: str) -> bool:
  """Returns whether programs may be compiled for a platform.

  All implementations of an operation are traced wherever a program is. Slow
  ones are left out where nobody would run them.
  """
  return platform in _ahead or jax.default_backend() == platform


def reads_slices() -> bool:
  """Returns whether products read slices of weights where they lie.

  They do on a TPU. The libraries that multiply on CPUs and GPUs get copies: in
  a loop over layers, of all weights in each forward.
  """
  return compiles_for("tpu")


def by_platform(*arrays, default, **others):
  """Runs one of several functions of the same arrays, or trees of them.

  `others` are functions by platform: "cpu", "tpu", "cuda" or "rocm"; all of
  them are traced.
  """
  if not others:
    return default(*arrays)
  return jax.lax.platform_dependent(*arrays, default=default, **others)


def host_device():
  """Returns the device of the host's own processor."""
  return jax.local_devices(backend="cpu")[0]


def cores() -> int:
  """Returns how many this process may use: in a container not all there are."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count()


def is_cpu(device) -> bool:
  """Tells whether a device is a CPU, whose memory is its host's."""
  return device.platform == "cpu"


def compiler_options() -> dict:
  """Returns the `compiler_options` of `jax.jit`; XLA_FLAGS go before them."""
  if jax.default_backend() != "cpu":
    return {}
  return {name: value for name, value in _CPU_OPTIONS.items()
          if name not in os.environ.get("XLA_FLAGS", "") and _knows(name)}


@functools.cache
def _knows(name) -> bool:
  option = {name: _CPU_OPTIONS[name]}
  try:
    jax.jit(lambda x: x, compiler_options=option).lower(0.0).compile()
    return True
  except jax.errors.JaxRuntimeError:
    return False


def _takes(function, arrays, static) -> bool:
  try:
    inspect.signature(function).bind(*arrays, **static)
  except TypeError:
    return False
  return True
