"""Compiles programs for devices that are not here."""

import math
import re
from typing import NamedTuple

import jax

from experiments.app import launch

# The compiler's message about a program whose temporaries do not fit.
_TOO_LARGE = re.compile(r"RESOURCE_EXHAUSTED: (.*)")
# Without a GPU nothing is tuned: the first tile of Triton's is taken, and for
# some small products there is none. cuBLAS takes all of them.
_NO_TILE = "Couldn't find output tile sizes"
_CUBLAS = {"xla_gpu_enable_triton_gemm": False}


# GiB that programs can use and GB read a second, by data sheets.
_SHEETS = {"a100": (79, 2039), "h100": (79, 3352), "h200": (139, 4800),
           "v5e": (16, 819), "v5p": (95, 2765), "v6e": (32, 1640)}


class Sheet(NamedTuple):
  """A model of device: bytes of its memory, bytes per second that it reads."""
  memory: int
  bandwidth: int


def sheet(name) -> tuple[Sheet | None, int]:
  """Returns the model that "v5e:4x4" names, None if unknown, and the number."""
  model, _, shape = name.lower().partition(":")
  sizes = shape.split("x")
  if not all(x.isdecimal() and int(x) for x in sizes):
    raise launch.UserError(f"--devices={name}: a model and a number or shape "
                           "are needed, such as h100:8 or v5e:4x4.")
  gib, gb = _SHEETS.get(model, (0, 0))
  return (Sheet(gib * 2**30, gb * 10**9) if gib else None,
          math.prod(map(int, sizes)))


def compile_(traced, platform="tpu"):
  """Compiles a `jax.stages.Traced`, "tpu" or "cuda"; raises `UserError`."""
  try:
    lowered = traced.lower(lowering_platforms=(platform,))
    return lowered.compile()
  except jax.errors.JaxRuntimeError as e:
    if _NO_TILE in str(e):
      return lowered.compile(_CUBLAS)
    match = _TOO_LARGE.search(str(e))
    if not match:
      raise
    raise launch.UserError(
        f"it does not fit: {match[1]} More of --mesh=model:N, a smaller "
        "--batch or shorter texts are needed.") from e
