"""Mixtures of experts: feed-forward layers of which each token uses a few.

Shazeer et al. 2017 (arXiv 1701.06538), as in Mixtral (arXiv 2401.04088). On a
mesh each device has either some hidden units of every expert, or some whole
experts, and all tokens of its layer. Both end in one sum over devices, less
than two exchanges of tokens (GShard, arXiv 2006.16668). Hidden units balance
the load; whole experts keep matrices full-sized.
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
from models.transformer import layer_stack
from models.transformer import linear_ops
from models.transformer import parameters
from models.transformer import quantization


# Columns that a matrix unit takes at a time.
_TILE = 128


def by_experts(num_experts: int, hidden_dim: int, size: int) -> bool:
  """Returns whether each of `size` devices has some experts whole. So it is if
  parts of hidden units would fill no whole tiles."""
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
    if self.has_variable("params", "kernel"):
      given = self.get_variable("params", "kernel")
      if isinstance(given, layer_stack.InStack):
        return given
    shape = (self.config.num_experts, self.features, inputs)
    return parameters.declare(self, "kernel", self.init, shape,
                              jnp.dtype(self.config.dtype),
                              (parameters.EXPERTS, *self.axes))


def mix(share, x, activation, gate, up, down):
  """Applies to each token `x [n, F]` its experts, weighted by `share [n, E]`
  float32, 0 if not chosen. The loop runs over experts in use, so that each
  one's weights are read once; it cannot be differentiated in reverse. `gate`,
  `up` are `[E, hidden, F]`, `down [E, F, hidden]`, or a `quantization.Matrix`,
  or a layer's part of a `layer_stack.InStack` of either."""
  axes = kernels.split_by_compiler()
  size = math.prod(axes.values())
  add_up = functools.partial(_of_experts, activation)
  stacks = [layer_stack.in_stack(w) for w in (gate, up, down)]
  if by_experts(share.shape[1], quantization.shape(stacks[0].stack)[2], size):
    second = PartitionSpec(None, tuple(axes))
    own = layer_stack.InStack(second, PartitionSpec())
    total = jax.shard_map(
        functools.partial(add_up, {}),
        in_specs=(second, PartitionSpec(), [own, own, own]),
        out_specs=PartitionSpec(tuple(axes)), axis_names=set(axes),
        check_vma=False)(share, x, stacks)
  else:
    total = add_up(axes, share, x, stacks)
  return total.sum(axis=0).astype(x.dtype)


def _of_experts(activation, axes, share, x, stacks):
  """Returns the sum over experts of `mix`, `[parts, n, F]` float32. `axes` are
  the mesh axes that split hidden units, and their sizes: their devices have one
  of the parts each, if the units can be divided."""
  in_use = share.any(axis=0)
  first = jnp.argsort(~in_use, stable=True)
  parts = math.prod(axes.values())
  if quantization.shape(stacks[0].stack)[2] % parts:
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
  return jax.lax.fori_loop(0, in_use.sum(), add, total)


def is_kernel(name) -> bool:
  """Returns whether a parameter of this name has an axis of experts. So it does
  in a model with experts; else it is the one layer's."""
  return bool(re.search(r"/feed_forward/(gate|up|down)/kernel$", name))


def shares(logits, config, correction=None):
  """Returns weights `[n, E]` float32 of experts, 0 for those not chosen. A
  correction `[E]` is added to the scores, then sigmoids of the logits `[n, E]`,
  by the choice alone (DeepSeek-V3, arXiv 2412.19437, section 2.1.2)."""
  logits = logits.astype(jnp.float32)
  if correction is None:
    scores = choice = jax.nn.softmax(logits, axis=-1)
  else:
    scores = jax.nn.sigmoid(logits)
    choice = scores + correction[None]
  if config.expert_groups > config.groups_per_token:
    choice = _of_best_groups(choice, config)
  _, index = jax.lax.top_k(choice, config.experts_per_token)
  values = jnp.take_along_axis(scores, index, axis=-1)
  if config.normalize_experts:
    values /= values.sum(axis=-1, keepdims=True)
  one_hot = jax.nn.one_hot(index, logits.shape[-1], dtype=jnp.float32)
  return jnp.einsum("nke,nk->ne", one_hot, config.expert_scale * values,
                    precision=jax.lax.Precision.HIGHEST)


def _of_best_groups(choice, config):
  """Returns scores `[n, E]`, -inf for the experts of other groups. A group
  counts as its best expert does (DeepSeek-V2, arXiv 2405.04434, section 2.2.2);
  with a correction as its two best do together."""
  groups = choice.reshape(len(choice), config.expert_groups, -1)
  best = jax.lax.top_k(groups, 2 if config.router == "sigmoid" else 1)[0]
  _, index = jax.lax.top_k(best.sum(axis=-1), config.groups_per_token)
  kept = jax.nn.one_hot(index, config.expert_groups, dtype=bool).any(axis=1)
  return jnp.where(kept[..., None], groups, -jnp.inf).reshape(choice.shape)
