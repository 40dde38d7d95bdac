"""EAGLE (arXiv 2401.15077, 2406.16858, 2503.01840): a layer on features.

The head is a decoder layer that reads, for each token, its embedding and the
target's features of the token before it, and makes features of its own: these
take the place of the target's where a token was drafted. EAGLE-1 and -2 read
the last hidden state, and share the target's output layer; EAGLE-3 reads the
outputs of three layers and has an output layer of its own, perhaps of the most
frequent tokens alone. The draft vocabulary is `params["tokens"]`. An output
layer that is rows of the target's, `params["output"]`, is not learned.

FSPAD (arXiv 2408.15562) changes EAGLE-1 twice: the embedding of the token is
the gate of a feed-forward layer on the projected features, and so picks among
more dimensions (section 3.1); and the layer has two outputs, one for logits and
one for the features that it reads next, each with a loss of its own (section
3.2).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Array, Block, Cache, Head
from models.heads import assembly
from models.heads import prefix_layers
from models.heads import target_ends
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization
from models.transformer import views

VERSIONS = (1, 3)


@dataclasses.dataclass(frozen=True)
class Config:
  """The architecture of the head.

  Attributes:
    layer: a `transformer.Config` with the sizes of its one layer; its `dim` is
      that of the head, its vocabulary is not used.
    version: 1, of EAGLE-1 and -2, or 3.
    draft_vocab: tokens that it can draft; 0: all of the target's. Of 3 alone.
    shared_output: whether its output layer is that of the target, of the
      `draft_vocab` tokens alone. Of 3 alone.
    own_embedding: whether it has an embedding of its own.
    norm_before_residual: whether the residual stream begins after the norm of
      the features. Of 3 alone.
    bias: whether the projection of the features has a bias.
    sampled_features: whether the token picks from them, see FSPAD. Of 1 alone.
    decoupled: whether logits and features are of two outputs. Of 1 alone.
  """
  layer: Any
  version: int = 3
  draft_vocab: int = 0
  shared_output: bool = False
  own_embedding: bool = False
  norm_before_residual: bool = False
  bias: bool = False
  sampled_features: bool = False
  decoupled: bool = False

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
    """Whether it reads the target's last state after its norm."""
    return self.version == 1

  @property
  def target_output(self) -> bool:
    """Whether its logits are of the target's output layer, of all tokens."""
    return self.version == 1


def taps(target) -> tuple[int, ...]:
  """Returns the layers that EAGLE-3 reads where its files name none.

  They are 2, n // 2 and n - 3 of n layers in counts of layers before the
  feature, as files have it; a target of few layers gives what it has.

  Args:
    target: a `transformer.Config`.
  """
  count = target.num_layers
  return tuple(min(max(x - 1, 0), count - 1)
               for x in (2, count // 2, count - 3))


@flax.struct.dataclass
class _State:
  """What has been read.

  Attributes:
    cache: of the layer, a slot a pair.
    hidden: `[B, width]`, what the head made of the last pair.
  """
  cache: Cache
  hidden: Array


@flax.struct.dataclass
class _Draft:
  """A draft on its way.

  Attributes:
    block: of the inner nodes but the root, which is read.
    hidden: `[B, I, width]`, what it made of the inner nodes.
  """
  block: Block
  hidden: Array


class _Spec(NamedTuple):
  """Attributes: configs of the head and of the target; what it computes."""
  config: Any
  target: Any
  network: Any


class _Inputs(NamedTuple):
  """Tokens `[B, T]`, their positions, and their mask `[B, T, N]`."""
  tokens: Array
  positions: Array
  mask: Array


class _Eagle(nn.Module):
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
    """Goes through the layer.

    Args:
      embeddings: `[B, T, F]`, of the tokens.
      hidden: `[B, T, width]`, made by the head; or None.
      features: of the target, a tuple, in their place.
      cache: of what has been read.
      block: of the layer.
      slot: where the first fresh token goes.
      view: an `AttentionView`.

    Returns:
      `[B, T, width]` and the block.
    """
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
def head(config: Config, target, num_features: int = 0) -> Head:
  """Returns an EAGLE head.

  Args:
    config, target: see `models.heads`; for EAGLE-3 the target keeps the outputs
      of the layers that `taps` names.
    num_features: layers that EAGLE-3 reads; 0: three.
  """
  target_ends.check(target)
  if config.layer.dim != target.dim and (
      config.version == 1 or config.shared_output):
    raise ValueError(f"eagle layer.dim={config.layer.dim}: that of the target, "
                     f"{target.dim}, is needed where its output layer is used.")
  return of_network(_Eagle, config, target, num_features or config.version)


def of_network(network, config, target, num_features: int) -> Head:
  """Returns a head that reads its own features where a token was drafted.

  Args:
    network: a module of a config and a target, called as `_Eagle` is.
    config: its architecture, with `layer`, `own_embedding`, `draft_vocab`,
      `shared_output`, `reads_normed`, `target_output` and `width` as of
      `Config`.
    target: the `transformer.Config` of the target.
    num_features: layers of the target that it reads.
  """
  return assembly.head(
      _Spec(config, target, network), (_init, _read, _start, _logits),
      lambda key: init_network(network, key, config, target, num_features),
      lambda depth: depth, num_features=num_features,
      max_length=config.layer.max_length)


def unrolled(config, target, params, target_params, features, tokens,
             depth: int, network=_Eagle):
  """Returns what the head predicts on its own features, for training.

  The training-time test of EAGLE-3 (arXiv 2503.01840, section 3): in round r a
  pair reads the head's features of round r - 1 in place of the target's, and
  attends to its r last predecessors of the rounds before, as it does when r
  tokens are drafted. All pairs of a round are computed at once.

  Args:
    config, target, params, target_params, features, tokens: see `models.heads`.
    depth: rounds.
    network: as of `of_network`.

  Returns:
    `[B, depth, T, N]` logits of the token after `tokens`, of the N tokens that
    it can draft; those of pair t in round r are meant only for t >= r.
  """
  return rounds(config, target, params, target_params, features, tokens,
                depth, network)[0]


def rounds(config, target, params, target_params, features, tokens,
           depth: int, network=_Eagle):
  """Does what `unrolled` does, and returns the features that were read too.

  Returns:
    Logits of `unrolled`, and `[B, depth, T, F]` features of the head, which
    stand for those of the target at `tokens`.
  """
  spec, (batch, length) = _Spec(config, target, network), tokens.shape
  if config.reads_normed:
    features = (target_ends.norm(target, target_params, features[0]),)
  order, found, made, hidden = np.arange(length), [], [], None
  back = order[:, None] - order[None]  # How far back a pair is.
  nothing = _empty_cache(config.layer, batch, 0)
  block = cache_lib.init_block(nothing, depth * length)
  for round_ in range(depth):
    # Of round k > 0 the pair that is so far back that it came k rounds in.
    sees = [back >= round_, *(back == round_ - k for k in range(1, round_ + 1))]
    sees += [np.zeros_like(back, bool)] * (depth - len(sees))
    inputs = _Inputs(
        tokens, jnp.broadcast_to(jnp.asarray(order, jnp.int32), tokens.shape),
        jnp.broadcast_to(np.concatenate(sees, axis=1),
                         (batch, length, depth * length)))
    hidden, block = _forward(spec, params, target_params, inputs, hidden,
                             features, nothing, block, round_ * length)
    found.append(_output(spec, params, target_params, hidden))
    made.append(hidden[..., -config.layer.dim:])
    hidden = jnp.pad(hidden[:, :-1], ((0, 0), (1, 0), (0, 0)))
  return jnp.stack(found, axis=1), jnp.stack(made, axis=1)


def _init(spec, batch, slots):
  layer = spec.config.layer
  return _State(_empty_cache(layer, batch, slots),
                jnp.zeros((batch, spec.config.width), layer.dtype))


def _read(spec, params, target_params, state, features, tokens, count):
  if spec.config.reads_normed:
    features = (target_ends.norm(spec.target, target_params, features[0]),)
  order = jnp.arange(tokens.shape[1])
  inputs = _Inputs(tokens, state.cache.length[:, None] + order[None],
                   jnp.broadcast_to(order[:, None] >= order[None],
                                    (len(tokens), len(order), len(order))))
  block = cache_lib.init_block(state.cache, len(order))
  hidden, block = _forward(spec, params, target_params, inputs, None, features,
                           state.cache, block, 0)
  slots = cache_lib.await_block(jnp.broadcast_to(order, tokens.shape), block)
  return _State(cache_lib.commit(state.cache, block, slots, count),
                prefix_layers.newest(hidden, count, state.hidden))


def _start(spec, params, target_params, state, root, nodes):
  del spec, params, target_params, root
  hidden = jnp.zeros((len(state.hidden), nodes, state.hidden.shape[1]),
                     state.hidden.dtype)
  return _Draft(cache_lib.init_block(state.cache, max(nodes - 1, 1)),
                hidden.at[:, 0].set(state.hidden))


def _logits(spec, params, target_params, state, draft, tree, level, nodes):
  if not nodes.is_root:
    draft = _grow(spec, params, target_params, state, draft, tree, level, nodes)
  found = _output(spec, params, target_params, nodes.of(draft.hidden, 1))
  return target_ends.spread(spec.target, found, params.get("tokens")), draft


def _output(spec, params, target_params, hidden):
  """Returns logits `[..., N]` of the tokens that the head can draft."""
  if spec.config.target_output:
    return target_ends.logits(spec.target, target_params,
                              hidden[..., :spec.config.layer.dim])
  return spec.network(spec.config, spec.target).apply(
      {"params": params["layer"]}, hidden, params.get("output"),
      method="logits")


def _grow(spec, params, target_params, state, draft, tree, level, nodes):
  """The draft with the features of the nodes of a level."""
  above = buffers.take_along(
      draft.hidden, nodes.of(tree.parents, 1)[:, :, None], axis=1)
  # The root is read, and in no slot of the block.
  mask = nodes.of(tree.mask, 1)[:, :, 1:draft.hidden.shape[1]]
  positions = jnp.broadcast_to((state.cache.length + level - 1)[:, None],
                               mask.shape[:2])
  inputs = _Inputs(nodes.of(tree.tokens, 1), positions, mask)
  hidden, block = _forward(spec, params, target_params, inputs, above, None,
                           state.cache, draft.block, nodes.start - 1)
  return _Draft(block, jax.lax.dynamic_update_slice_in_dim(
      draft.hidden, hidden, nodes.start, 1))


def _forward(spec, params, target_params, inputs, hidden, features, cache,
             block, slot):
  """Goes through the layer; see `_Eagle`."""
  layer = spec.config.layer
  embeddings = (
      linear_ops.lookup(params["embedding"], inputs.tokens).astype(layer.dtype)
      if spec.config.own_embedding
      else target_ends.embed(spec.target, target_params, inputs.tokens))
  view, = views.of(layer, cache, inputs.positions, inputs.mask)
  return spec.network(spec.config, spec.target).apply(
      {"params": params["layer"]}, embeddings, hidden, features, cache, block,
      slot, view)


def init(key, config: Config, target, num_features: int = 0):
  """Returns random parameters.

  Args:
    key, config, target: see `models.heads`.
    num_features: as of `head`.

  Returns:
    A dict of `layer`, and `embedding` and `tokens` where the head has its own;
    `tokens [draft_vocab]` int32 are the first ones. A shared `output
    [draft_vocab, F]` is random as well, see `target_ends.output_rows`.
  """
  return init_network(_Eagle, key, config, target,
                      num_features or config.version)


def init_network(network, key, config, target, num_features: int):
  """Returns random parameters; arguments as of `of_network` and `init`."""
  layer = config.layer
  one = jax.ShapeDtypeStruct((1, 1, layer.dim), jnp.dtype(layer.dtype))
  features = (jax.ShapeDtypeStruct((1, 1, target.dim), jnp.dtype(
      layer.dtype)),) * num_features
  embeddings = one if config.own_embedding else features[0]
  cache, (view,) = prefix_layers.abstract_inputs(layer)
  params = {"layer": network(config, target).lazy_init(
      key, embeddings, None, features, cache, Block(cache.keys, cache.values),
      0, view)["params"]}
  if config.own_embedding:
    params["embedding"] = quantization.initializer(layers.INIT, layer.weights)(
        jax.random.fold_in(key, 1), (target.vocab_size, layer.dim),
        jnp.dtype(layer.dtype))
  if config.draft_vocab:
    params["tokens"] = jnp.arange(config.draft_vocab, dtype=jnp.int32)
  if config.shared_output:
    params["output"] = quantization.initializer(layers.INIT, layer.weights)(
        jax.random.fold_in(key, 2), (config.draft_vocab, layer.dim),
        jnp.dtype(layer.dtype))
  return params


def _empty_cache(layer, batch, slots):
  shape = (batch, layer.num_kv_heads)
  return Cache(
      (jnp.zeros((*shape, layer.head_dim, slots), layer.dtype),),
      (jnp.zeros((*shape, slots, layer.head_dim), layer.dtype),),
      jnp.zeros(batch, jnp.int32))
