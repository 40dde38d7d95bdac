"""Next-token modules (MTP) of DeepSeek-V3 (arXiv 2412.19437, section 2.2).

A module comes in its target's checkpoint. It norms a token's embedding and the
target's last state before it (already normed for MiMo), projects both to one,
and applies a decoder layer and a norm; embedding and output layer are the
target's. It drafts on from its own states, as EAGLE-1 does.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax.types import Block, Head
from models import transformer
from models.heads.parts import formats
from models.heads.parts import mtp_tensors
from models.heads.parts import own_features
from models.heads.parts import training
from models.transformer import layers


@dataclasses.dataclass(frozen=True)
class Config:
  """The architecture of a module."""
  layer: Any  # A `transformer.Config` of its one layer, see `layer_of`
  # Whether the embedding of the first pair is left out (MiMo)
  masks_first: bool = False
  # Tokens that it can draft, with their rows of the target's output layer; 0:
  # all
  draft_vocab: int = 0
  own_embedding: ClassVar[bool] = False
  target_output: ClassVar[bool] = True

  @property
  def reads_normed(self) -> bool:
    """Tells whether it reads the target's normed state; MiMo's does not."""
    return not self.masks_first

  @property
  def shared_output(self) -> bool:
    """Tells whether rows of the target's output layer are kept apart."""
    return bool(self.draft_vocab)

  @property
  def width(self) -> int:
    """Of what the layer makes of a pair."""
    return self.layer.dim


def layer_of(target):
  """Returns the architecture of a layer like a target's."""
  return dataclasses.replace(formats.layer_of(target), weights="dtype")


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
  if config.layer.dim != target.dim:
    raise ValueError(f"mtp layer.dim={config.layer.dim}: that of the target, "
                     f"{target.dim}, is needed.")
  return own_features.of_network(Module, config, target, 1)


def init(key, config: Config, target):
  """Returns random parameters, a dict of `layer`."""
  return own_features.init(Module, key, config, target, 1)


def _config(folder):
  target, module = folder.target, mtp_tensors.find(folder.tensors)
  if not module:
    raise ValueError(f"'{folder.path}' holds no tensors of a next-token "
                     "module.")
  unlike = [name for name in ("num_experts", "sandwich_norm", "reordered_norm",
                              "parallel", "attention_gate")
            if getattr(target, name)
            and not (name == "num_experts" and target.latent_dim)]
  if unlike or target.norm == "layer":
    name = (unlike or ["norm"])[0]
    raise ValueError(f"'{folder.path}': a next-token module with a layer like "
                     f"the target's, {name}={getattr(target, name)!r}, "
                     "is not supported; layers of Llama, Qwen2, Qwen3 and "
                     "DeepSeek are.")
  # Unlike the target's first layers it has experts.
  layer = layer_of(dataclasses.replace(target, dense_layers=0))
  layer = dataclasses.replace(layer, dtype=folder.dtype)
  return Config(layer, module.is_mimo, formats.draft_vocab(
      folder, folder.fields)), formats.last(target)


def _names(config, _):
  layer = formats.layer_names("layer/layer", mtp_tensors.LAYER)
  if _layer(config):
    own = transformer.abstract_params(_layer(config)[0])["layers"]["layer_0"]
    paths = jax.tree_util.tree_leaves_with_path(own)
    layer = {f"layer/layer/{name}": f"{mtp_tensors.LAYER}.{name}"
             for name in (transformer.param_name(path) for path, _ in paths)}
  return {"tokens": formats.OFFSETS,
          "layer/fc/kernel": mtp_tensors.PROJECTION,
          **{f"{ours}/scale": f"{theirs}.weight"
             for ours, theirs in mtp_tensors.NORMS.items()}, **layer}


def _layer(config):
  """Returns a layer of DeepSeek, and what the names of its tensors are."""
  layer = dataclasses.replace(config.layer, weights="dtype")
  return (layer, mtp_tensors.LAYER) if layer.latent_dim else None


def _fields(config, _, dtype):
  some = {"draft_vocab_size": config.draft_vocab} if config.draft_vocab else {}
  return formats.layer_fields(config.layer, dtype) | some | {
      "architectures": [_ARCHITECTURES[0]], "mtp_num_hidden_layers": 1}


_ARCHITECTURES = ("Qwen3NextMTP", "DeepSeekMTPModel", "Glm4MoeMTPModel",
                  "MiMoMTPModel")
FORMAT = formats.Format(
    _config, _names, _fields, architectures=_ARCHITECTURES,
    holds=lambda tensors: mtp_tensors.find(tensors) is not None,
    select=lambda tensors: mtp_tensors.find(tensors).tensors, layer=_layer)
KINDS = {"mtp": training.Kind(lambda target, depth: Config(layer_of(target)),
                              training.of_pairs(lambda *arguments: (
                                  own_features.rounds(Module, *arguments)[0])),
                              limited=lambda config, count: dataclasses.replace(
                                  config, draft_vocab=count))}
