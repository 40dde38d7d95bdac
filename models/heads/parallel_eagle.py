"""P-EAGLE (arXiv 2602.01469): layers of EAGLE-3 that draft a block at once.

Each further token to draft is a pair of a mask token and one trained vector
instead of features; all pairs go through the layers at once, so the
distribution is a product. The format was read in vllm's tests of parallel
drafting (`mask_hidden`, `ptd_token_id`); no published file was available.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Block, Head
from models.heads import eagle
from models.heads.parts import assembly
from models.heads.parts import formats
from models.heads.parts import own_features
from models.heads.parts import prefix_layers
from models.heads.parts import training
from models.transformer import decoder
from models.transformer import layers as layers_lib
from models.transformer import linear_ops
from models.transformer import quantization
from models.transformer import views


@dataclasses.dataclass(frozen=True)
class Config:
  """The architecture of the head."""
  # A `transformer.Config` with the sizes of its layers; its vocabulary is not
  # used
  layers: Any
  depth: int = 8  # Tokens that are drafted, at most; files do not say how many
  mask_token: int = 0  # Token whose embedding stands for what is not known
  draft_vocab: int = 0  # Tokens that it can draft; 0: all of the target's
  shared_output: bool = False  # See `eagle.Config`
  own_embedding: bool = False  # Whether it has an embedding of its own
  norm_before_residual: bool = False  # See `eagle.Config`
  num_features: int = 3  # Layers of the target that it reads

  def __post_init__(self):
    if self.layers.scan_layers:
      raise ValueError("parallel_eagle needs layers of scan_layers=False.")
    if self.depth < 1:
      raise ValueError(f"parallel_eagle depth={self.depth}: at least 1 is "
                       "needed.")

  @property
  def first(self) -> eagle.Config:
    """Of the first layer, which reads pairs, and of the output layer."""
    return eagle.Config(
        dataclasses.replace(self.layers, num_layers=1),
        draft_vocab=self.draft_vocab, shared_output=self.shared_output,
        norm_before_residual=self.norm_before_residual,
        num_features=self.num_features)


class _Network(nn.Module):
  """The layer of EAGLE-3, and others after it."""
  config: Config
  target: Any

  def setup(self):
    self.first = eagle.Network(self.config.first, self.target)
    self.rest = decoder.Unrolled(self.config.layers, first=1)

  def __call__(self, embeddings, features, cache, block, seen):
    """Returns `[B, T, F]` of pairs, and their block."""
    one, others = slice(0, 1), slice(1, None)
    x, begun = self.first(embeddings, None, features, _of(cache, one),
                          _of(block, one), 0, seen[0])
    x, ended, _ = self.rest(x, _of(cache, others), _of(block, others), 0, seen)
    return x, Block(begun.keys + ended.keys, begun.values + ended.values)

  def logits(self, x, shared):
    return self.first.logits(x, shared)


def _of(kept, chosen):
  return kept.replace(keys=kept.keys[chosen], values=kept.values[chosen])


@functools.lru_cache(maxsize=None)
def head(config: Config, target) -> Head:
  """Returns the head; the target keeps the outputs of the layers it reads."""
  if config.mask_token >= target.vocab_size and not config.own_embedding:
    raise ValueError(f"parallel_eagle mask_token={config.mask_token}: the "
                     f"target has the tokens 0 to {target.vocab_size - 1}.")
  return assembly.head(
      assembly.Spec(config, target),
      (functools.partial(prefix_layers.init_state, config.layers,
                         config.layers),
       _read, _start, assembly.without_state), init,
      num_features=config.num_features, depth=config.depth,
      max_length=config.layers.max_length)


def _read(spec, params, target_params, state, features, tokens, count):
  (cache,), (mask, order) = state.caches, prefix_layers.causal(*tokens.shape)
  hidden, block = _forward(spec, params, target_params, cache, tokens, features,
                           cache.length[:, None] + order, mask)
  return prefix_layers.committed(state, hidden, block, count)


def _start(spec, params, target_params, state, root, nodes):
  """Returns logits `[B, L, N]` of the positions of a block."""
  del nodes
  config, batch, (cache,) = spec.config, len(root), state.caches
  hidden, count = state.hidden[:, None], config.depth - 1
  if count:
    mask, order = prefix_layers.causal(batch, count)
    later, _ = _forward(
        spec, params, target_params, cache,
        jnp.full((batch, count), config.mask_token, jnp.int32),
        _masked(config, params, batch, count), cache.length[:, None] + order,
        mask)
    hidden = jnp.concatenate([hidden, later], axis=1)
  return _network(spec, params, hidden, params.get("output"), method="logits")


def _masked(config, params, batch, count):
  """Returns what stands for the features of pairs of mask tokens."""
  whole = linear_ops.lookup(params["mask_hidden"], jnp.zeros(1, jnp.int32))
  parts = jnp.split(whole.astype(config.layers.dtype), config.num_features,
                    axis=-1)
  return tuple(jnp.broadcast_to(x, (batch, count, x.shape[-1])) for x in parts)


def _forward(spec, params, target_params, cache, tokens, features, positions,
             mask):
  config, target, _ = spec
  embeddings = own_features.embed(config, config.layers, target, params,
                                  target_params, tokens)
  seen = views.of(config.layers, cache, positions, mask)
  return _network(spec, params, embeddings, features, cache,
                  cache_lib.init_block(cache, tokens.shape[1]), seen)


def _network(spec, params, *arguments, **named):
  return _Network(*spec[:2]).apply(
      {"params": params["network"]}, *arguments, **named)


def init(key, config: Config, target):
  """Returns random parameters: `network`, `mask_hidden`, tables by token.
  `mask_hidden [1, F]` is of all features; the tables are `eagle.init`'s."""
  layers = config.layers
  embeddings, _, features = own_features.abstract_features(
      config, layers, target, config.num_features)
  matrix = quantization.initializer(layers_lib.INIT, layers.weights)
  return {
      "network": _Network(config, target).lazy_init(
          key, embeddings, features,
          *prefix_layers.abstract_inputs(layers))["params"],
      "mask_hidden": matrix(jax.random.fold_in(key, 2), (
          1, target.dim * config.num_features), jnp.dtype(layers.dtype)),
      **own_features.tables(key, config, layers, target)}


def _config(folder):
  fields = folder.fields
  given, kept = eagle.published(folder)
  mask = next((fields[name] for name in _MASKS if name in fields), None)
  if mask is None:
    raise ValueError(f"'{folder.path}': none of the fields "
                     f"{', '.join(_MASKS)} names the mask token.")
  return Config(
      folder.layers(fields.get(formats.LAYER, fields)), mask_token=mask,
      depth=fields.get("num_speculative_tokens", Config.depth), **given), kept


def _names(config, _):
  names = {"embedding": "embed_tokens.weight", "tokens": formats.OFFSETS,
           "mask_hidden": "mask_hidden",
           "network/first/norm/scale": "norm.weight",
           "network/first/output": "lm_head.weight",
           **formats.linear("network/first/fc", "fc"),
           **formats.layer_names("network/first", "layers.0")}
  for i in range(1, config.layers.num_layers):
    names |= formats.layer_names(f"network/rest/layer_{i}", f"layers.{i}")
  return names


def _fields(config, kept, dtype):
  return formats.layer_fields(config.layers, dtype) | {
      "architectures": [_ARCHITECTURES[0]], "model_type": "llama",
      _MASKS[0]: config.mask_token, "num_speculative_tokens": config.depth,
      "eagle_aux_hidden_state_layer_ids": [i + 1 for i in kept],
      "norm_before_residual": config.norm_before_residual,
      "draft_vocab_size": config.draft_vocab}


def _predict(config, target, params, target_params, features, tokens, depth):
  spec, tokens = assembly.Spec(config, target), tokens[:, 1:]
  (batch, length), count = tokens.shape, config.depth - 1
  anchors, positions = training.roots(length, training.STRIDE - 1, depth)
  masks, places = count * len(anchors), np.asarray(anchors)
  chained, mask = training.with_chains(length, places, count)
  hidden, _ = _forward(
      spec, params, target_params,
      prefix_layers.empty_cache(config.layers, batch),
      jnp.pad(tokens, ((0, 0), (0, masks)), constant_values=config.mask_token),
      tuple(jnp.concatenate([x, made], axis=1) for x, made in zip(
          features, _masked(config, params, batch, masks))),
      jnp.broadcast_to(chained, (batch, len(chained))),
      jnp.broadcast_to(mask, (batch, *mask.shape)))
  later = hidden[:, length:].reshape(batch, len(places), count, -1)
  return _network(spec, params, jnp.concatenate(
      [hidden[:, None, places], later.swapaxes(1, 2)], axis=1),
                  params.get("output"), method="logits"), positions + 1


_ARCHITECTURES = ("PEagleDraftModel", "PEagleSpeculator")
_MASKS = ("ptd_token_id", "pard_token", "mask_token_id")
FORMAT = formats.Format(
    _config, _names, _fields, field=_MASKS[0], architectures=_ARCHITECTURES,
    known={**dict.fromkeys(_MASKS, formats.Field(int, 0, 1 << 24)),
           "num_speculative_tokens": formats.COUNT,
           "norm_before_residual": formats.FLAG, "eagle_config": {}})
KINDS = {"p-eagle": training.Kind(
    lambda target, depth: Config(dataclasses.replace(
        formats.layer_of(target), tie_embeddings=False), depth),
    _predict, formats.three_layers,
    limited=lambda config, count: dataclasses.replace(
        config, draft_vocab=count, shared_output=True),
    begin=training.from_output_layer)}
