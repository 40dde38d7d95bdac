"""Mixtures of experts: feed-forward layers of which each token uses a few.

Shazeer et al. 2017 (arXiv 1701.06538), as in Mixtral (arXiv 2401.04088).
"""

import math
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from decoding_jax import kernels
from models.transformer import layer_stack
from models.transformer import linear_ops
from models.transformer import parameters
from models.transformer import quantization


class Kernels(nn.Module):
  """The weights of one projection, `[E, features, inputs]`."""
  config: Any
  features: int
  axes: tuple[str | None, str | None]
  init: Any

  @nn.compact
  def __call__(self, inputs):
    if self.has_variable("params", "kernel"):
      given = self.get_variable("params", "kernel")
      if isinstance(given, layer_stack.InStack):
        return given
    shape = (self.config.num_experts, self.features, inputs)
    return parameters.declare(self, "kernel", self.init, shape,
                              jnp.dtype(self.config.dtype), self.axes)


def mix(share, x, activation, gate, up, down):
  """Applies to each token its experts, weighted by its shares.

  Each expert that some token has chosen computes all tokens, one expert after
  the other: its weights are read once, and with the few fresh tokens of a step
  reading takes the time. The number of iterations is that of experts in use, so
  that the loop cannot be differentiated in reverse.

  Args:
    share: `[n, E]` float32, 0 for those not chosen.
    x: `[n, F]`.
    activation: of the gate.
    gate: `[E, hidden, F]`; or a `quantization.Matrix`, or a layer's part of a
      `layer_stack.InStack` of either. So are the next two.
    up: `[E, hidden, F]`.
    down: `[E, F, hidden]`.

  Returns:
    `[n, F]`, of the type of `x`.
  """
  in_use = share.any(axis=0)
  first = jnp.argsort(~in_use, stable=True)
  axes = kernels.split_by_compiler()
  parts = math.prod(axes.values())
  stacks = [layer_stack.in_stack(w) for w in (gate, up, down)]
  if quantization.shape(stacks[0].stack)[-2] % parts:
    parts = 1

  def add(i, total):
    # The barrier keeps XLA from converting all experts of 16 bits ahead of the
    # loop on a CPU.
    (weights, shares), number = jax.lax.optimization_barrier(
        ((stacks, share), first[i]))
    own = [layer_stack.take(w, number) for w in weights]
    gates, hidden = (y.astype(x.dtype)
                     for y in linear_ops.matmuls(x, own[:2], sliced=True))
    y = linear_ops.by_inputs(activation(gates) * hidden, own[2], parts,
                             sliced=True)
    return total + jnp.take(shares, number, axis=1)[None, :, None] * y

  # Each device of a mesh has some of the hidden units. They are summed at the
  # end, since devices would else wait for each other at each expert.
  total = jnp.zeros((parts, *x.shape), jnp.float32)
  if parts > 1:
    total = jax.lax.with_sharding_constraint(total, PartitionSpec(tuple(axes)))
  total = jax.lax.fori_loop(0, in_use.sum(), add, total)
  return total.sum(axis=0).astype(x.dtype)


def is_kernel(name) -> bool:
  """Returns whether a parameter of this name has an axis of experts.

  So it does in a model with experts; else it is that of the one layer.
  """
  return bool(re.search(r"/feed_forward/(gate|up|down)/kernel$", name))


def shares(logits, chosen, normalize):
  """Returns the weight of each expert for each token.

  Args:
    logits: `[n, E]`, of the router.
    chosen: experts of a token.
    normalize: whether their weights are normalised to sum to one.

  Returns:
    `[n, E]` float32, 0 for those not chosen.
  """
  values, index = jax.lax.top_k(
      jax.nn.softmax(logits.astype(jnp.float32), axis=-1), chosen)
  if normalize:
    values /= values.sum(axis=-1, keepdims=True)
  one_hot = jax.nn.one_hot(index, logits.shape[-1], dtype=jnp.float32)
  return jnp.einsum("nke,nk->ne", one_hot, values,
                    precision=jax.lax.Precision.HIGHEST)
