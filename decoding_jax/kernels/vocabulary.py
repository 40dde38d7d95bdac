"""Arrays over a vocabulary, whole or split over the devices of a layer.

On a mesh whose compiler splits layers (`mesh_axes.split_by_compiler`) logits,
distributions, noise and residuals keep their last axis V split, ceil(V / n)
numbers a device. These are the operations for which a compiler would gather V.
"""

import math

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from decoding_jax.kernels import buffers
from decoding_jax.kernels import gumbel as gumbel_lib
from decoding_jax.kernels import mesh_axes
from decoding_jax.kernels import random


def shards() -> int:
  """Returns n, the number of devices that V is split over here."""
  return math.prod(mesh_axes.split_by_compiler().values())


def split(x):
  """Splits the last axis `[..., V]` over the devices of a layer; any n."""
  if shards() == 1:
    return x
  return jax.lax.with_sharding_constraint(
      x, PartitionSpec(*(None,) * (x.ndim - 1), _axes()))


def from_parts(part, size: int, *arrays):
  """Returns `[size]` float or bool, of which each device makes its own part.
  `part(first, number, *arrays) -> [number]` are the numbers of the tokens from
  `first` on; some are after the last token."""
  axes, number = _axes(), -(-size // shards())

  def own(*arrays):
    return part(jax.lax.axis_index(axes) * number, number, *arrays)

  return split(jax.shard_map(
      own, in_specs=PartitionSpec(), out_specs=PartitionSpec(axes),
      axis_names=set(axes), check_vma=False)(*arrays)[:size])


def take(x, tokens):
  """Returns what `x [..., V]` has at `tokens [..., K]`, or at `[]` of `[V]`. On
  a mesh by sums of n numbers, instead of gathering V."""
  if shards() == 1:
    return x[tokens] if x.ndim == 1 else buffers.take_along(x, tokens, axis=-1)
  if tokens.ndim == x.ndim:
    x = x[..., None, :]
  return jnp.where(_places(tokens, x.shape[-1]), split(x), 0).sum(
      axis=-1, dtype=x.dtype)


def put(x, tokens, values):
  """Returns `x [V]` with other values at different tokens, `[]` or `[K]`.
  Tokens of V and more are dropped."""
  if shards() == 1:
    return x.at[tokens].set(values, mode="drop")
  values = jnp.broadcast_to(jnp.asarray(values, x.dtype), tokens.shape)
  places = _places(tokens.reshape(-1), len(x))
  new = jnp.where(places, values.reshape(-1, 1), -jnp.inf).max(axis=0)
  return split(jnp.where(places.any(axis=0), new, x))


def top_k(values, k: int):
  """Returns the k largest of `values [..., V]` in order, and their tokens. Each
  device finds its own k, and all of them the largest of n k pairs. Of equal
  values the first comes first."""
  if shards() == 1:
    return gumbel_lib.top_k(values, k)
  axes, size = _axes(), -(-values.shape[-1] // shards())
  spare = [(0, 0)] * (values.ndim - 1) + [(0, shards() * size -
                                           values.shape[-1])]
  lead = (None,) * (values.ndim - 1)

  def own(values):
    best, places = gumbel_lib.top_k(values, min(k, size))
    tokens = places + size * jax.lax.axis_index(axes).astype(places.dtype)
    best, tokens = (jax.lax.all_gather(x, axes, axis=x.ndim - 1, tiled=True)
                    for x in (best, tokens))
    best, at = jax.lax.top_k(best, k)
    return best, buffers.take_along(tokens, at, axis=-1)

  return jax.shard_map(
      own, in_specs=PartitionSpec(*lead, axes), out_specs=PartitionSpec(),
      axis_names=set(axes), check_vma=False)(
          split(jnp.pad(values, spare, constant_values=-jnp.inf)))


def most_probable(values):
  """Returns the token `[...]` of the largest value, of equal ones the first. On
  a CPU `argmax` takes four times as long."""
  return top_k(values, 1)[1].squeeze(-1)


def gumbel(key, size: int):
  """Draws standard Gumbels `[size]`, each of the key and its token alone. They
  are the same on any mesh. With keys of Threefry each device makes its own
  ones, with other keys all of them."""
  if shards() == 1 or not random.is_threefry(key):
    return split(random.gumbel(key, size))
  tokens = split(jnp.arange(size, dtype=jnp.uint32))
  return -jnp.log(random.exponential(random.bits_at(key, size, tokens)))


def gumbel_top_k(key, log_probs, k: int):
  """Draws k tokens without replacement (Kool et al. 2019, section 2). Returns
  perturbed log-probabilities `[k]`, descending, which is draw order, and tokens
  `[k]` int32. A value of -inf marks a zero-probability token."""
  if shards() == 1:
    return gumbel_lib.gumbel_top_k(key, log_probs, k)
  return top_k(log_probs + gumbel(key, len(log_probs)), k)


def _axes():
  return tuple(mesh_axes.split_by_compiler())


def _places(tokens, size):
  return tokens[..., None] == split(jax.lax.broadcasted_iota(
      tokens.dtype, (*(1,) * tokens.ndim, size), tokens.ndim))
