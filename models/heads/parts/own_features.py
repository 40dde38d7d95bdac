"""Heads of a layer that reads its own features where a token was drafted.

`network` is a module such as `eagle.Network`; `config` has the fields of
`eagle.Config` that this module reads.
"""

import dataclasses
from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Array, Block, Head
from models.heads.parts import assembly
from models.heads.parts import prefix_layers
from models.heads.parts import target_ends
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization
from models.transformer import views


@flax.struct.dataclass
class _Draft:
  """Inner nodes: a block of all but the root, and `hidden [B, I, width]`."""
  block: Block
  hidden: Array


class _Inputs(NamedTuple):
  """Tokens `[B, T]`, their positions, and their mask `[B, T, N]`."""
  tokens: Array
  positions: Array
  mask: Array


def of_network(network, config, target, num_features: int) -> Head:
  """Returns a head that reads its own features where a token was drafted."""
  return assembly.head(
      assembly.Spec(config, target, network), (_init, _read, _start, _logits),
      lambda key, *sizes: init(network, key, *sizes, num_features),
      lambda depth: depth, num_features=num_features,
      max_length=config.layer.max_length)


def rounds(network, config, target, params, target_params, features, tokens,
           depth: int):
  """Returns predictions on the head's own features, and these; see `of_pairs`.
  As the training-time test of EAGLE-3 (arXiv 2503.01840, section 3): in round r
  a pair reads the head's features of round r - 1, and attends to its r last
  predecessors of earlier rounds. Pairs of a round are computed at once."""
  spec, (batch, length) = assembly.Spec(config, target, network), tokens.shape
  if config.reads_normed:
    features = (target_ends.norm(target, target_params, features[0]),)
  order, logits, made, hidden = np.arange(length), [], [], None
  back = order[:, None] - order[None]  # How far back a pair is.
  nothing = prefix_layers.empty_cache(_alone(config.layer), batch)
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
    logits.append(_output(spec, params, target_params, hidden))
    made.append(hidden[..., -config.layer.dim:])
    hidden = jnp.pad(hidden[:, :-1], ((0, 0), (1, 0), (0, 0)))
  return jnp.stack(logits, axis=1), jnp.stack(made, axis=1)


def _init(spec, batch, slots):
  layer = _alone(spec.config.layer)
  return prefix_layers.State(
      (prefix_layers.empty_cache(layer, batch, slots),),
      jnp.zeros((batch, spec.config.width), layer.dtype))


def _read(spec, params, target_params, state, features, tokens, count):
  if spec.config.reads_normed:
    features = (target_ends.norm(spec.target, target_params, features[0]),)
  cache, = state.caches
  mask, order = prefix_layers.causal(*tokens.shape)
  hidden, block = _forward(
      spec, params, target_params,
      _Inputs(tokens, cache.length[:, None] + order, mask), None, features,
      cache, cache_lib.init_block(cache, tokens.shape[1]), 0)
  return prefix_layers.committed(state, hidden, block, count)


def _start(spec, params, target_params, state, root, nodes):
  del spec, params, target_params, root
  hidden = jnp.zeros((len(state.hidden), nodes, state.hidden.shape[1]),
                     state.hidden.dtype)
  return _Draft(cache_lib.init_block(state.caches[0], max(nodes - 1, 1)),
                hidden.at[:, 0].set(state.hidden))


def _logits(spec, params, target_params, state, draft, tree, level, nodes):
  if not nodes.is_root:
    draft = _grow(spec, params, target_params, state.caches[0], draft, tree,
                  level, nodes)
  logits = _output(spec, params, target_params, nodes.of(draft.hidden, 1))
  return target_ends.spread(spec.target, logits, params.get("tokens")), draft


def _output(spec, params, target_params, hidden):
  """Returns logits `[..., N]` of the tokens that the head can draft."""
  if spec.config.target_output:
    return target_ends.logits(spec.target, target_params,
                              hidden[..., :spec.config.layer.dim],
                              params.get("output"))
  return spec.part(*spec[:2]).apply(
      {"params": params["layer"]}, hidden, params.get("output"),
      method="logits")


def _grow(spec, params, target_params, cache, draft, tree, level, nodes):
  # The root is read, and in no slot of the block.
  mask = nodes.of(tree.mask, 1)[:, :, 1:draft.hidden.shape[1]]
  positions = jnp.broadcast_to((cache.length + level - 1)[:, None],
                               mask.shape[:2])
  inputs = _Inputs(nodes.of(tree.tokens, 1), positions, mask)
  hidden, block = _forward(
      spec, params, target_params, inputs,
      assembly.above(draft.hidden, tree, nodes), None, cache, draft.block,
      nodes.start - 1)
  return _Draft(block, assembly.put(draft.hidden, hidden, nodes))


def _forward(spec, params, target_params, inputs, hidden, features, cache,
             block, slot):
  """Goes through the layer; see `eagle.Network`."""
  layer = spec.config.layer
  embeddings = embed(spec.config, layer, spec.target, params, target_params,
                     inputs.tokens)
  view, = views.of(layer, cache, inputs.positions, inputs.mask)
  return spec.part(*spec[:2]).apply(
      {"params": params["layer"]}, embeddings, hidden, features, cache, block,
      slot, view)


def init(network, key, config, target, num_features: int):
  """Returns random parameters of a head that reads `num_features`."""
  cache, block, (view,) = prefix_layers.abstract_inputs(config.layer)
  params = {"layer": network(config, target).lazy_init(
      key, *abstract_features(config, config.layer, target, num_features),
      cache, block, 0, view)["params"]}
  return params | tables(key, config, config.layer, target)


def abstract_features(config, layer, target, num_features: int):
  """Returns shapes of an embedding and the target's features, None between."""
  own, given = (jax.ShapeDtypeStruct((1, 1, dim), jnp.dtype(layer.dtype))
                for dim in (layer.dim, target.dim))
  return own if config.own_embedding else given, None, (given,) * num_features


def embed(config, layer, target, params, target_params, tokens):
  """Returns embeddings of tokens `[...]`, the head's own or the target's."""
  if config.own_embedding:
    return linear_ops.lookup(params["embedding"], tokens).astype(layer.dtype)
  return target_ends.embed(target, target_params, tokens)


def tables(key, config, layer, target):
  """Returns random tables by token that a head has; see `eagle.init`."""
  params, dtype = {}, jnp.dtype(layer.dtype)
  matrix = quantization.initializer(layers.INIT, layer.weights)
  if config.own_embedding:
    params["embedding"] = matrix(jax.random.fold_in(key, 1),
                                 (target.vocab_size, layer.dim), dtype)
  if config.draft_vocab:
    params["tokens"] = jnp.arange(config.draft_vocab, dtype=jnp.int32)
  if config.shared_output:
    params["output"] = matrix(jax.random.fold_in(key, 2),
                              (config.draft_vocab, layer.dim), dtype)
  return params


def _alone(layer):
  """Returns the architecture of one layer, whatever model it is like."""
  return dataclasses.replace(layer, num_layers=1, scan_layers=False)
