"""Functions of activations, number by number.

XLA computes those of 16 bits on a CPU in one thread and number by number: of 16
tokens they take as long as the products between them.
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels.cpu import bindings


def _on_cpu(name):
  return lambda reference: dispatch.on_cpu(
      reference, functools.partial(bindings.of_pair, name),
      fits=bindings.supports_pair)


@_on_cpu("sum")
def add(x, y):
  """Returns `x + y`, of one shape and type."""
  return jnp.add(x, y)


@_on_cpu("swiglu")
def swiglu(gate, up):
  """Returns `silu(gate) * up` (Shazeer 2020, arXiv 2002.05202), of one shape
  and type."""
  return jax.nn.silu(gate) * up
