"""Feed-forward layers of which each token uses a few: mixtures of experts.

Shazeer et al. 2017 (arXiv 1701.06538), as in Mixtral (arXiv 2401.04088).
"""

import math
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from decoding_jax.kernels.cpu import bindings
from models.transformer import linear_ops
from models.transformer import quantization


class Kernels(nn.Module):
  """The weights of one projection, `[E, features, inputs]`."""
  config: Any
  features: int
  init: Any

  @nn.compact
  def __call__(self, inputs):
    shape = (self.config.num_experts, self.features, inputs)
    return self.param("kernel", self.init, shape,
                      jnp.dtype(self.config.dtype))


def mix(share, x, activation, gate, up, down):
  """What the experts of each token make of it, by its shares.

  One expert after the other computes all tokens, whether they have chosen it or
  not, if any has: its weights are read once, and with the few fresh tokens of
  a step reading is what takes the time. A loop of as many turns as there are
  experts in use cannot be differentiated in reverse.

  Args:
    share: `[E, n]` float32, 0 for those not chosen.
    x: `[F, n]`.
    activation: of the gate.
    gate: `[E, hidden, F]`, of 8 bits too, and so is `up`.
    up: see there.
    down: `[E, F, hidden]`, of 8 bits too.

  Returns:
    `[F, n]`, of the type of `x`.
  """
  in_use = share.any(axis=1)
  first = jnp.argsort(~in_use, stable=True)
  axes = bindings.split_by_compiler()
  parts = math.prod(axes.values())
  if quantization.shape(gate)[1] % parts:
    parts = 1

  def add(i, total):
    def of(kernels):
      # In 16 bits XLA would convert all experts ahead of the loop on a CPU; the
      # barrier makes it wait for the number.
      kernels, number = jax.lax.optimization_barrier((kernels, first[i]))
      return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(
          x, number, keepdims=False), kernels)

    gates, hidden = (y.astype(x.dtype)
                     for y in linear_ops.matmuls((of(gate), of(up)), x))
    made = linear_ops.by_inputs(of(down), activation(gates) * hidden, parts)
    return total + of(share)[None, None] * made

  # Each device of a mesh has some of the hidden units. Sums over them wait
  # until the end: else devices would wait for each other at each expert.
  total = jnp.zeros((parts, *x.shape), jnp.float32)
  if parts > 1:
    total = jax.lax.with_sharding_constraint(total, PartitionSpec(tuple(axes)))
  total = jax.lax.fori_loop(0, in_use.sum(), add, total)
  return total.sum(axis=0).astype(x.dtype)


def is_kernel(name) -> bool:
  """Whether a parameter, by its name in a `Decoder`, is one of each expert.

  Its model has experts; without them it is that of the one layer there is.
  """
  return bool(re.search(r"/feed_forward/(gate|up|down)/kernel$", name))


def shares(logits, chosen, normalize):
  """How much each expert counts for each token.

  Args:
    logits: `[E, n]`, of the router.
    chosen: experts a token.
    normalize: whether those chosen count one together.

  Returns:
    `[E, n]` float32, 0 for those not chosen.
  """
  values, index = jax.lax.top_k(
      jax.nn.softmax(logits.T.astype(jnp.float32), axis=-1), chosen)
  if normalize:
    values /= values.sum(axis=-1, keepdims=True)
  one_hot = jax.nn.one_hot(index, len(logits), dtype=jnp.float32)
  return jnp.einsum("nke,nk->en", one_hot, values,
                    precision=jax.lax.Precision.HIGHEST)
