"""Heads of a layer that reads its own features where a token was drafted."""

import dataclasses
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.kernels import buffers
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Array, Block, Cache, Head
from models.heads.parts import assembly
from models.heads.parts import prefix_layers
from models.heads.parts import target_ends
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization
from models.transformer import views


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


def of_network(network, config, target, num_features: int) -> Head:
  """Returns a head that reads its own features where a token was drafted.

  Args:
    network: a module of a config and a target, called as that of `eagle` is.
    config: its architecture, with `layer`, `own_embedding`, `draft_vocab`,
      `shared_output`, `reads_normed`, `target_output` and `width` as of
      `eagle.Config`.
    target: the `transformer.Config` of the target.
    num_features: layers of the target that it reads.
  """
  return assembly.head(
      _Spec(config, target, network), (_init, _read, _start, _logits),
      lambda key: init(network, key, config, target, num_features),
      lambda depth: depth, num_features=num_features,
      max_length=config.layer.max_length)


def unrolled(network, config, target, params, target_params, features, tokens,
             depth: int):
  """Returns what the head predicts on its own features, for training.

  The training-time test of EAGLE-3 (arXiv 2503.01840, section 3): in round r a
  pair reads the head's features of round r - 1 instead of the target's, and
  attends to its r last predecessors of the rounds before, as it does when r
  tokens are drafted. All pairs of a round are computed at once.

  Args:
    network: see `of_network`.
    config: of the head.
    target: the `transformer.Config` of the target.
    params: of the head.
    target_params: of the target.
    features: tuple of `[B, T, F]`.
    tokens: `[B, T]` int32, the token after each.
    depth: rounds.

  Returns:
    `[B, depth, T, N]` logits of the token after `tokens`, of the N tokens that
    it can draft; those of pair t in round r are meant only for t >= r.
  """
  return rounds(network, config, target, params, target_params, features,
                tokens, depth)[0]


def rounds(network, config, target, params, target_params, features, tokens,
           depth: int):
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
  """Goes through the layer; see `eagle`."""
  layer = spec.config.layer
  embeddings = embed(spec.config, layer, spec.target, params, target_params,
                     inputs.tokens)
  view, = views.of(layer, cache, inputs.positions, inputs.mask)
  return spec.network(spec.config, spec.target).apply(
      {"params": params["layer"]}, embeddings, hidden, features, cache, block,
      slot, view)


def init(network, key, config, target, num_features: int):
  """Returns random parameters; arguments are those of `of_network`."""
  layer = config.layer
  one = jax.ShapeDtypeStruct((1, 1, layer.dim), jnp.dtype(layer.dtype))
  features = (jax.ShapeDtypeStruct((1, 1, target.dim), jnp.dtype(
      layer.dtype)),) * num_features
  embeddings = one if config.own_embedding else features[0]
  cache, (view,) = prefix_layers.abstract_inputs(layer)
  params = {"layer": network(config, target).lazy_init(
      key, embeddings, None, features, cache, Block(cache.keys, cache.values),
      0, view)["params"]}
  return params | tables(key, config, layer, target)


def embed(config, layer, target, params, target_params, tokens):
  """Returns embeddings of tokens `[...]`, the head's own or the target's."""
  if config.own_embedding:
    return linear_ops.lookup(params["embedding"], tokens).astype(layer.dtype)
  return target_ends.embed(target, target_params, tokens)


def tables(key, config, layer, target):
  """Returns random tables by token that a head has, see `eagle.init`."""
  found, dtype = {}, jnp.dtype(layer.dtype)
  matrix = quantization.initializer(layers.INIT, layer.weights)
  if config.own_embedding:
    found["embedding"] = matrix(jax.random.fold_in(key, 1),
                                (target.vocab_size, layer.dim), dtype)
  if config.draft_vocab:
    found["tokens"] = jnp.arange(config.draft_vocab, dtype=jnp.int32)
  if config.shared_output:
    found["output"] = matrix(jax.random.fold_in(key, 2),
                             (config.draft_vocab, layer.dim), dtype)
  return found


def _empty_cache(layer, batch, slots):
  """Returns a cache of one layer, whatever model it is like."""
  return prefix_layers.empty_cache(dataclasses.replace(
      layer, num_layers=1, scan_layers=False), batch, slots)
