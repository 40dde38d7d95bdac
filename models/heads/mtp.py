"""Next-token modules (MTP) of DeepSeek-V3 (arXiv 2412.19437, section 2.2).

A module is trained with its target, in whose checkpoint it lies. It norms the
embedding of a token and the target's last state before it (but for MiMo's
module that state is already normed), projects both to
one, and goes through a decoder layer and a norm of its own; embedding and
output layer are the target's. It drafts several tokens by reading what it made
of the last one in place of the target's state, as EAGLE-1 does.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp

from decoding_jax.types import Block, Head
from models.heads import eagle
from models.heads import target_ends
from models.transformer import layers


@dataclasses.dataclass(frozen=True)
class Config:
  """The architecture of a module.

  Attributes:
    layer: a `transformer.Config` of its one layer, see `layer_of`.
    masks_first: whether the embedding of the first pair is left out (MiMo).
  """
  layer: Any
  masks_first: bool = False
  own_embedding: ClassVar[bool] = False
  draft_vocab: ClassVar[int] = 0
  shared_output: ClassVar[bool] = False
  target_output: ClassVar[bool] = True

  @property
  def reads_normed(self) -> bool:
    """Whether it reads the target's normed state; that of MiMo does not."""
    return not self.masks_first

  @property
  def width(self) -> int:
    """Of what the layer makes of a pair."""
    return self.layer.dim


def layer_of(target):
  """Returns the architecture of a layer like those of a target.

  Args:
    target: a `transformer.Config`.
  """
  return dataclasses.replace(target, num_layers=1, scan_layers=False,
                             weights="dtype")


class Module(nn.Module):
  """Norms, projection and layer; called as the network of EAGLE is."""
  config: Config
  target: Any

  @nn.compact
  def __call__(self, embeddings, hidden, features, cache, block, slot, view):
    layer = self.config.layer
    norm = functools.partial(layers.NORMS[layer.norm], layer)
    if hidden is None:
      hidden = features[0]
      if self.config.masks_first:
        places = cache.length[:, None] + jnp.arange(hidden.shape[1])[None]
        embeddings *= (places > 0)[:, :, None].astype(embeddings.dtype)
    x = layers.Linear(layer.dim, False, jnp.dtype(layer.dtype), layer.weights,
                      name="fc")(
        jnp.concatenate([norm(name="embed_norm")(embeddings),
                         norm(name="feature_norm")(hidden)], axis=-1))
    kv = (cache.keys[0], cache.values[0], block.keys[0], block.values[0])
    x, (keys, values) = layers.Layer(layer, name="layer")(x, kv, None, slot,
                                                          (view,))
    return norm(name="norm")(x), Block((keys,), (values,))


@functools.lru_cache(maxsize=None)
def head(config: Config, target) -> Head:
  """Returns a module as a head."""
  target_ends.check(target)
  if config.layer.dim != target.dim:
    raise ValueError(f"mtp layer.dim={config.layer.dim}: that of the target, "
                     f"{target.dim}, is needed.")
  return eagle.of_network(Module, config, target, 1)


def unrolled(*arguments):
  """Returns what a module predicts, for training: as `eagle.unrolled`."""
  return eagle.unrolled(*arguments, network=Module)


def init(key, config: Config, target):
  """Returns random parameters, a dict of `layer`."""
  return eagle.init_network(Module, key, config, target, 1)
