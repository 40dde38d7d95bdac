"""EAGLE (arXiv 2401.15077, 2406.16858, 2503.01840): a layer on features.

A decoder layer reads each token's embedding and the target's features of the
token before, and makes features for drafted tokens. EAGLE-1 and -2 read the
last hidden state and share the target's output layer; EAGLE-3 reads three
layers and has its own, perhaps of the most frequent tokens, `params["tokens"]`.
A shared output layer, `params["output"]`, is not trained.

FSPAD (arXiv 2408.15562) changes EAGLE-1 twice: the token's embedding gates a
feed-forward layer on the features (section 3.1), and separate outputs give
logits and the next features, each with its own loss (section 3.2).
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from decoding_jax.types import Block, Head
from models.heads.parts import formats
from models.heads.parts import own_features
from models.heads.parts import training
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization

VERSIONS = (1, 3)


@dataclasses.dataclass(frozen=True)
class Config:
  """The architecture of the head."""
  # A `transformer.Config` with the sizes of its one layer; its `dim` is that of
  # the head, its vocabulary is not used
  layer: Any
  version: int = 3  # 1, of EAGLE-1 and -2, or 3
  # Tokens that it can draft; 0: all of the target's. Of 3 alone.
  draft_vocab: int = 0
  # Whether its output layer is the target's, of the `draft_vocab` tokens
  # alone. Of 3 alone.
  shared_output: bool = False
  own_embedding: bool = False  # Whether it has an embedding of its own
  # Whether the residual stream begins after the norm of the features. Of 3
  # alone.
  norm_before_residual: bool = False
  bias: bool = False  # Whether the projection of the features has a bias
  # Whether the token picks from them, see FSPAD. Of 1 alone.
  sampled_features: bool = False
  # Whether logits and features are of two outputs. Of 1 alone.
  decoupled: bool = False
  num_features: int = 0  # Layers that it reads; 0: one, or three for 3

  def __post_init__(self):
    if self.version not in VERSIONS:
      raise ValueError(f"eagle version={self.version}: one of {VERSIONS} is "
                       "needed.")
    if self.shared_output and not self.draft_vocab:
      raise ValueError("eagle shared_output=True needs a draft_vocab, of the "
                       "tokens whose rows are shared.")
    for name in ("sampled_features", "decoupled"):
      if getattr(self, name) and self.version != 1:
        raise ValueError(f"eagle {name}=True, version={self.version}: "
                         "version=1 is needed.")

  @property
  def width(self) -> int:
    """Of what the layer makes of a pair: what is for logits comes first."""
    return self.layer.dim * (1 + self.decoupled)

  @property
  def reads_normed(self) -> bool:
    """Tells whether it reads the target's last state after its norm."""
    return self.version == 1

  @property
  def target_output(self) -> bool:
    """Tells whether its logits come from the target's full output layer."""
    return self.version == 1


taps = formats.three_layers


class Network(nn.Module):
  """Projection of features, the layer, and the output layer of EAGLE-3."""
  config: Config
  target: Any

  def setup(self):
    cfg, layer = self.config, self.config.layer
    norm = functools.partial(layers.NORMS[layer.norm], layer)
    self.fc = layers.Linear(layer.dim, cfg.bias, jnp.dtype(layer.dtype),
                            layer.weights)
    if cfg.version == 1:
      # Of the first layer there is no norm before the attention.
      self.layer = _Plain(layer, cfg.width)
      if cfg.sampled_features:
        self.sample = _Sampled(layer)
      return
    self.embed_norm, self.feature_norm, self.middle_norm, self.norm = (
        norm() for _ in range(4))
    self.attention = layers.Attention(layer)
    self.feed_forward = layers.FeedForward(layer)
    if not cfg.shared_output:
      self.head = self.param(
          "output", quantization.initializer(layers.INIT, layer.weights),
          (cfg.draft_vocab or self.target.vocab_size, layer.dim),
          jnp.dtype(layer.dtype))

  def __call__(self, embeddings, hidden, features, cache, block, slot, view):
    """Returns `[B, T, width]` of the layer, and its block. It reads `embeddings
    [B, T, F]` of tokens, and `hidden [B, T, width]` that it made itself or, if
    that is None, the target's `features`."""
    if hidden is None:
      features = [x.astype(embeddings.dtype) for x in features]
    kv = (cache.keys[0], cache.values[0], block.keys[0], block.values[0])
    if self.config.version == 1:
      first = features[0] if hidden is None else (
          hidden[..., -self.config.layer.dim:])
      x = self.fc(jnp.concatenate([embeddings, first], axis=-1))
      if self.config.sampled_features:
        x = self.sample(x, embeddings)
      x, (keys, values) = self.layer(x, kv, slot, view)
      return x, Block((keys,), (values,))
    if hidden is None:
      hidden = self.fc(jnp.concatenate(features, axis=-1))
    normed = self.feature_norm(hidden)
    x = jnp.concatenate([self.embed_norm(embeddings), normed], axis=-1)
    x, (keys, values) = self.attention(x, kv[:2], kv[2:], slot, view)
    x += normed if self.config.norm_before_residual else hidden
    x += self.feed_forward(self.middle_norm(x))
    if self.is_initializing():
      self.norm(x)
    return x, Block((keys,), (values,))

  def logits(self, hidden, shared):
    """Returns logits of the draft vocabulary, of EAGLE-3."""
    return linear_ops.matmul(self.norm(hidden),
                             self.head if shared is None else shared)


class _Plain(nn.Module):
  """A layer without the norm before its attention, of `width` outputs."""
  config: Any
  width: int

  @nn.compact
  def __call__(self, x, kv, slot, view):
    cfg = self.config
    y, block = layers.Attention(cfg, name="attention")(x, kv[:2], kv[2:], slot,
                                                       view)
    x += y
    y = layers.NORMS[cfg.norm](cfg, name="feed_forward_norm")(x)
    wide = dataclasses.replace(cfg, dim=self.width)
    y = layers.FeedForward(wide, name="feed_forward")(y)
    return y + jnp.concatenate([x] * (self.width // cfg.dim), axis=-1), block


class _Sampled(nn.Module):
  """A feed-forward layer on features, gated by the embedding of a token."""
  config: Any

  @nn.compact
  def __call__(self, x, embeddings):
    cfg = self.config
    linear = functools.partial(layers.Linear, bias=False,
                               dtype=jnp.dtype(cfg.dtype), weights=cfg.weights)
    y = layers.NORMS[cfg.norm](cfg, name="norm")(x)
    gate = nn.silu(linear(cfg.hidden_dim, name="gate")(embeddings))
    up = linear(cfg.hidden_dim, name="up")(y)
    return x + linear(cfg.dim, name="down")(gate * up)


@functools.lru_cache(maxsize=None)
def head(config: Config, target) -> Head:
  """Returns an EAGLE head; EAGLE-3 reads the layers that `taps` names."""
  if config.layer.dim != target.dim and (
      config.version == 1 or config.shared_output):
    raise ValueError(f"eagle layer.dim={config.layer.dim}: that of the target, "
                     f"{target.dim}, is needed where its output layer is used.")
  return own_features.of_network(Network, config, target,
                                 config.num_features or config.version)


def init(key, config: Config, target):
  """Returns random parameters: `layer`, and tables by token. These are
  `embedding` and `tokens [draft_vocab]` int32, the first ones, where the head
  has its own, and a shared `output [draft_vocab, F]`."""
  return own_features.init(Network, key, config, target,
                           config.num_features or config.version)


def _config(folder):
  tensors = folder.tensors
  for prefix in (_MIDDLE, "layers.0"):
    if f"{prefix}.hidden_norm.weight" in tensors:
      fields, kept = published(folder)
      layer = folder.layers(folder.fields.get(formats.LAYER, folder.fields),
                            prefix)
      return Config(layer, **fields), kept
  if not _holds(tensors):
    raise ValueError(f"'{folder.path}' holds no head of a known type: "
                     "tensors of EAGLE or FSPAD are missing.")
  layer = folder.layers(folder.fields)
  sampled = "fc.fc.weight" in tensors
  down = tensors.get("layers.0.mlp.down_proj.weight")
  return Config(
      layer, version=1, bias=f"fc{'.fc' * sampled}.bias" in tensors,
      own_embedding=formats.has_rows(folder, "embed_tokens.weight"),
      sampled_features=sampled, decoupled=(
          down is not None and down.shape[:1] == (2 * layer.dim,))
  ), formats.last(folder.target)


def published(folder):
  """Returns fields of `Config` that P-EAGLE has too, and the layers read."""
  fields, tensors = folder.fields, folder.tensors
  formats.check_only(folder, fields, _ONLY)
  kept = formats.kept(folder, fields.get("eagle_config", {})) or (
      taps(folder.target))
  return {
      "draft_vocab": formats.draft_vocab(folder, fields),
      "shared_output": (formats.OFFSETS in tensors
                        and "lm_head.weight" not in tensors),
      "own_embedding": formats.has_rows(folder, "embed_tokens.weight"),
      "norm_before_residual": fields.get("norm_before_residual",
                                         formats.SPECULATORS in fields),
      "num_features": len(kept)}, kept


def _names(config, tensors):
  fc = "fc.fc" if config.sampled_features else "fc"
  names = {"embedding": "embed_tokens.weight",
           **formats.linear("layer/fc", fc)}
  if config.version == 1:
    names |= {f"layer/sample/{name}/kernel": f"fc.mlp.{name}_proj.weight"
              for name in ("gate", "up", "down")}
    names["layer/sample/norm/scale"] = "fc.post_attention_layernorm.weight"
    return names | formats.layer_names("layer/layer", "layers.0")
  prefix = ("layers.0" if "layers.0.hidden_norm.weight" in tensors and
            f"{_MIDDLE}.hidden_norm.weight" not in tensors else _MIDDLE)
  return names | {"tokens": formats.OFFSETS,
                  "layer/norm/scale": "norm.weight",
                  "layer/output": "lm_head.weight",
                  **formats.layer_names("layer", prefix)}


def _fields(config, kept, dtype):
  own = {"architectures": [_EAGLE3[0] if config.version == 3
                           else "LlamaForCausalLM"],
         "model_type": "llama",
         "eagle_aux_hidden_state_layer_ids": [i + 1 for i in kept],
         "norm_before_residual": config.norm_before_residual}
  if config.draft_vocab:
    own["draft_vocab_size"] = config.draft_vocab
  return formats.layer_fields(config.layer, dtype) | own


def _holds(tensors):
  return any(name in tensors for name in (
      "fc.weight", "fc.fc.weight", f"{_MIDDLE}.hidden_norm.weight",
      "layers.0.hidden_norm.weight"))


def _kind(version, feature_weight=0, **more):
  def unrolled(*arguments):
    made = own_features.rounds(Network, *arguments)
    return made if feature_weight else made[0]

  limited = lambda config, count: dataclasses.replace(
      config, draft_vocab=count, shared_output=True)
  return training.Kind(
      lambda target, depth: Config(dataclasses.replace(
          formats.layer_of(target), tie_embeddings=False), version, **more),
      training.of_pairs(unrolled), formats.last if version == 1 else taps,
      feature_weight,
      None if version == 1 else limited,
      None if version == 1 else training.from_output_layer)


_EAGLE3 = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM",
           "Eagle3Speculator", "Eagle3DraftModel", "Qwen3Eagle3Model")
_MIDDLE = "midlayer"
# What changes the computation, and is not computed here unless it is so.
_ONLY = dict.fromkeys(
    ("norm_before_fc", "fc_norm", "norm_output", "input_norm"), False)
FORMAT = formats.Format(
    _config, _names, _fields, architectures=_EAGLE3, holds=_holds,
    known={"norm_before_residual": formats.FLAG, "eagle_config": {}})
KINDS = {"eagle": _kind(1), "eagle3": _kind(3),
         "fspad": _kind(1, 10, bias=True, sampled_features=True,
                        decoupled=True)}
