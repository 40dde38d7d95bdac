"""Mixtures of experts: feed-forward layers of which each token uses a few.

Shazeer et al. 2017 (arXiv 1701.06538), as in Mixtral (arXiv 2401.04088).

On a mesh the devices that share a layer have all of its tokens, and each has
either some of the hidden units of every expert, or some of the experts whole.
Both end in one sum over these devices, which is less than an exchange of tokens
before the experts and one after them (GShard, arXiv 2006.16668). Hidden units
keep all devices equally busy; with whole experts a device goes through its own
ones alone, and multiplies by matrices of full size.
"""

import functools
import math
import re
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from decoding_jax import kernels
from models.transformer import linear_ops
from models.transformer import parameters
from models.transformer import quantization


# Columns that a matrix unit takes at a time.
_TILE = 128


def by_experts(num_experts: int, hidden_dim: int, size: int) -> bool:
  """Returns whether each device has some experts whole.

  Args:
    num_experts: E.
    hidden_dim: hidden units of an expert.
    size: devices that share a layer.

  Returns:
    True if they divide the experts, and would have parts of hidden units that
    fill no whole tiles.
  """
  return size > 1 and num_experts > 0 and not num_experts % size and bool(
      hidden_dim % (size * _TILE))


class Kernels(nn.Module):
  """The weights of one projection, `[E, features, inputs]`."""
  config: Any
  features: int
  axes: tuple[str | None, str | None]
  init: Any

  @nn.compact
  def __call__(self, inputs):
    shape = (self.config.num_experts, self.features, inputs)
    return parameters.declare(self, "kernel", self.init, shape,
                              jnp.dtype(self.config.dtype),
                              (parameters.EXPERTS, *self.axes))


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
    gate: `[E, hidden, F]`; or a `quantization.Matrix`, and so are the next two.
    up: `[E, hidden, F]`.
    down: `[E, F, hidden]`.

  Returns:
    `[n, F]`, of the type of `x`.
  """
  axes = kernels.split_by_compiler()
  size = math.prod(axes.values())
  add_up = functools.partial(_of_experts, activation)
  if by_experts(share.shape[1], quantization.shape(gate)[1], size):
    own = PartitionSpec(tuple(axes))
    total = jax.shard_map(
        functools.partial(add_up, {}),
        in_specs=(PartitionSpec(None, tuple(axes)), PartitionSpec(), own, own,
                  own),
        out_specs=own, axis_names=set(axes), check_vma=False)(
            share, x, gate, up, down)
  else:
    total = add_up(axes, share, x, gate, up, down)
  return total.sum(axis=0).astype(x.dtype)


def _of_experts(activation, axes, share, x, gate, up, down):
  """Returns the sum over experts of `mix`, `[parts, n, F]` float32.

  Args:
    activation, share, x, gate, up, down: see `mix`.
    axes: dict of mesh axes that split the hidden units, and their sizes; their
      devices have one of the parts each, to be summed, if they can be divided.
  """
  in_use = share.any(axis=0)
  first = jnp.argsort(~in_use, stable=True)
  parts = math.prod(axes.values())
  if quantization.shape(gate)[1] % parts:
    parts = 1

  def add(i, total):
    def of(arrays, axis=0):
      # The barrier keeps XLA from converting all experts of 16 bits ahead of
      # the loop on a CPU.
      arrays, number = jax.lax.optimization_barrier((arrays, first[i]))
      return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(
          x, number, axis, keepdims=False), arrays)

    gates, hidden = (y.astype(x.dtype)
                     for y in linear_ops.matmuls(x, (of(gate), of(up))))
    y = linear_ops.by_inputs(activation(gates) * hidden, of(down), parts)
    return total + of(share, axis=1)[None, :, None] * y

  # Each device of a mesh has some of the hidden units. They are summed at the
  # end, since devices would else wait for each other at each expert.
  total = jnp.zeros((parts, *x.shape), jnp.float32)
  if parts > 1:
    total = jax.lax.with_sharding_constraint(total, PartitionSpec(tuple(axes)))
  return jax.lax.fori_loop(0, in_use.sum(), add, total)


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
