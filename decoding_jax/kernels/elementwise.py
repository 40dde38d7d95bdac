"""Functions of activations, number by number.

XLA computes those of 16 bits on a CPU in one thread and number by number: of 16
tokens they take as long as the products between them.
"""

import functools

import jax
import jax.numpy as jnp

from decoding_jax.kernels import dispatch
from decoding_jax.kernels.cpu import bindings


def add(x, y):
  """Returns `x + y`, of one shape and type."""
  return _add(x, y)


def swiglu(gate, up):
  """Returns `silu(gate) * up` (Shazeer 2020, arXiv 2002.05202), of one shape
  and type."""
  return _swiglu(gate, up)


def _on_cpu(name, reference):
  return dispatch.on_cpu(reference, functools.partial(bindings.of_pair, name),
                         fits=bindings.supports_pair)


_add = _on_cpu("sum", lambda x, y: jnp.add(x, y))
_swiglu = _on_cpu("swiglu", lambda gate, up: jax.nn.silu(gate) * up)
