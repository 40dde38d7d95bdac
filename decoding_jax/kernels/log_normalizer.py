"""What normalises logits."""

import jax
import jax.numpy as jnp

from decoding_jax.kernels.cpu import bindings


def normalizer(logits, divisor=1.0):
  """The parts of a softmax that are sums over the vocabulary.

  The logarithm of the distribution is `(logits - largest) / divisor -
  log_mass`.

  Args:
    logits: `[..., V]` float32.
    divisor: `[]` float32.

  Returns:
    largest and log_mass, `[..., 1]` float32.
  """
  divisor = jnp.asarray(divisor, jnp.float32)
  form = {"cpu": _natively} if bindings.reduces(logits.shape[-1]) else {}
  found = jax.lax.platform_dependent(logits, divisor, default=_sums, **form)
  return tuple(x[..., None] for x in found)


@jax.custom_jvp
def _natively(logits, divisor):
  return bindings.normalizer(logits, divisor)


@_natively.defjvp
def _slopes(primals, tangents):
  return jax.jvp(_sums, primals, tangents)


def _sums(logits, divisor):
  largest = logits.max(axis=-1)
  shares = jnp.exp((logits - largest[..., None]) / divisor)
  return largest, jnp.log(shares.sum(axis=-1))
