"""Chimera (arXiv 2402.15758): trigrams for near tokens, one layer for all.

The trigram encoder, a small network on three embeddings, replaces the target's
lower layers. The full context encoder, one decoder layer, reads it and attends
to the text's last hidden states and trigrams, the path's trigrams, and its own
outputs for the path instead of missing hidden states. Level i has its own
output layer, on that output joined with the hidden state before the root.

Written from the training forward of kafkayu/Chimera@1650c932
(chimera/chimera/model/Chimera_model.py), whose drafting reads differently.
There a trigram with fewer than two predecessors repeats a token; here a text's
first token is in no trigram, since a head does not see it.
"""

import dataclasses
import functools
from typing import Any

import flax.linen as nn
import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax.runtime import cache as cache_lib
from decoding_jax.types import Array, Block, Cache, Head, NONE
from models.heads.parts import assembly
from models.heads.parts import formats
from models.heads.parts import prefix_layers
from models.heads.parts import target_ends
from models.heads.parts import training
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import quantization
from models.transformer import views

_GRAM = 3
_PARTS = ("trimlp", "fast_layer1", "chimera_head")


@dataclasses.dataclass(frozen=True)
class Config:
  """The architecture of the head."""
  # A `transformer.Config` with the sizes of the full context encoder. Files
  # hold none of them: there they equal the target's layers.
  layer: Any
  heads: int = 4  # Output layers: the levels that it can draft

  def __post_init__(self):
    if self.layer.window:
      raise ValueError(f"chimera layer: window={self.layer.window}: 0, a layer "
                       "that attends to all positions, is needed.")


@flax.struct.dataclass
class _State:
  """Keys and values of hidden states, then of trigrams; the last of each. These
  are `feature [B, F]`, and `recent [B, 3]` int32 tokens, `NONE` for none."""
  cache: Cache
  feature: Array
  recent: Array


@flax.struct.dataclass
class _Draft:
  """Keys and values of the text; a block of the inner nodes, and their grams.
  The block has 2I slots, trigrams before outputs; `grams [B, I, 3]` are
  int32."""
  context: tuple[Array, Array]
  block: Block
  grams: Array


class _Chimera(nn.Module):
  """Trigram encoder, layer, and output layers."""
  config: Config
  target: Any

  def setup(self):
    cfg = self.config.layer
    linear = functools.partial(layers.Linear, dtype=jnp.dtype(cfg.dtype),
                               weights=cfg.weights)
    self.gram = linear(_GRAM * cfg.dim, True)
    self.gram_out = linear(cfg.dim, False)
    self.layer = layers.Layer(cfg)
    self.heads = [self.param(
        f"head_{i}", quantization.initializer(layers.INIT, cfg.weights),
        (self.target.vocab_size, 2 * cfg.dim), jnp.dtype(cfg.dtype))
                  for i in range(self.config.heads)]

  def encode(self, x):
    """Returns `[..., F]` of the embeddings of trigrams, `[..., 3 F]`."""
    return self.gram_out(x + nn.silu(self.gram(x)))

  def forward(self, x, kv, slot, view):
    """Goes through the layer; see `layers.Layer`."""
    return self.layer(x, kv, None, slot, (view,))

  def logits(self, x, level):
    """Returns `[..., V]` of hidden states joined with outputs, `[..., 2 F]`."""
    return linear_ops.matmul(x, self.heads[level])

  def __call__(self, x, kv, view):
    """Goes everywhere, to make all parameters."""
    return self.forward(self.encode(x), kv, 0, view)


@functools.lru_cache(maxsize=None)
def head(config: Config, target) -> Head:
  """Returns a Chimera head on a target that keeps its last layer's output."""
  prefix_layers.check(config.layer, target)
  return assembly.head(
      assembly.Spec(config, target), (_init, _read, _start, _logits), init,
      lambda depth: depth, depth=config.heads,
      max_length=config.layer.max_length)


def _rounds(config: Config, target, params, target_params, features, tokens,
            depth: int):
  """Returns the head's predictions on its own outputs; see `of_pairs`. As in
  `own_features.rounds`, pair t of round r is the node r levels below the root
  of pair t - r."""
  spec, (batch, length) = assembly.Spec(config, target), tokens.shape
  order = np.arange(length)
  back = order[:, None] - order[None]  # How far back a pair is.
  places = jnp.broadcast_to(jnp.asarray(order, jnp.int32), tokens.shape)
  hidden = target_ends.norm(target, target_params, features[0])
  x = _encode(spec, params, target_params, _grams(
      jnp.full((batch, _GRAM), NONE, jnp.int32), tokens))
  nothing = prefix_layers.empty_cache(config.layer, batch)
  # Slots: hidden states, trigrams, the outputs of each round but the last.
  block = cache_lib.init_block(nothing, (depth + 1) * length)
  block = _write(block, _keys(spec, params, hidden, places), 0)
  logits, made = [], []
  for round_ in range(depth):
    sees = [back >= round_, back >= 0, *(back == round_ - k
                                         for k in range(round_))]
    sees += [np.zeros_like(back, bool)] * (depth + 1 - len(sees))
    mask = jnp.broadcast_to(np.concatenate(sees, axis=1),
                            (batch, length, (depth + 1) * length))
    view, = views.of(config.layer, nothing, places + 1, mask)
    out, block = _forward(spec, params, x, (nothing.keys[0], nothing.values[0]),
                          block, length, view)
    if round_ < depth - 1:
      block = _write(block, _keys(spec, params, out, places + 1),
                     (round_ + 2) * length)
    before = jnp.pad(hidden, ((0, 0), (round_, 0), (0, 0)))[:, :length]
    logits.append(_output(spec, params, before, out, round_))
    made.append(out)
  return jnp.stack(logits, axis=1), jnp.stack(made, axis=1)


def _init(spec, batch, slots):
  layer = spec.config.layer
  one = prefix_layers.empty_cache(layer, batch, slots)
  return _State(one.replace(keys=one.keys * 2, values=one.values * 2),
                jnp.zeros((batch, layer.dim), layer.dtype),
                jnp.full((batch, _GRAM), NONE, jnp.int32))


def _read(spec, params, target_params, state, features, tokens, count):
  """Keeps keys and values of hidden states and trigrams."""
  order = jnp.arange(tokens.shape[1], dtype=jnp.int32)
  places = state.cache.length[:, None] + order[None]
  hidden = target_ends.norm(spec.target, target_params, features[0])
  x = _encode(spec, params, target_params, _grams(state.recent, tokens))
  pairs = (_keys(spec, params, hidden, places),
           _keys(spec, params, x, places + 1))
  block = Block(*(tuple(parts) for parts in zip(*pairs)))
  slots = jnp.broadcast_to(order, tokens.shape)
  last = count[:, None] + jnp.arange(_GRAM, dtype=jnp.int32)[None]
  recent = jnp.take_along_axis(
      jnp.concatenate([state.recent, tokens], axis=1), last, axis=1)
  return _State(cache_lib.commit(state.cache, block, slots, count),
                prefix_layers.newest(hidden, count, state.feature), recent)


def _start(spec, params, target_params, state, root, nodes):
  del params, target_params
  cache, batch = state.cache, len(root)
  grams = jnp.zeros((batch, nodes, _GRAM), jnp.int32)
  last = _whole(jnp.concatenate([state.recent[:, :2], root[:, None]], axis=1))
  empty = prefix_layers.empty_cache(spec.config.layer, batch)
  context = (jnp.concatenate(cache.keys, axis=cache_lib.KEY_SLOTS),
             jnp.concatenate(cache.values, axis=cache_lib.VALUE_SLOTS))
  return _Draft(context, cache_lib.init_block(empty, 2 * nodes),
                grams.at[:, 0].set(last))


def _logits(spec, params, target_params, state, draft, tree, level, nodes):
  if not nodes.is_root:
    above = assembly.above(draft.grams, tree, nodes)
    draft = draft.replace(grams=assembly.put(draft.grams, jnp.concatenate(
        [above[:, :, 1:], nodes.of(tree.tokens, 1)[:, :, None]], -1), nodes))
  size, length = draft.grams.shape[1], state.cache.length
  x = _encode(spec, params, target_params, nodes.of(draft.grams, 1))
  places = jnp.broadcast_to((length + level)[:, None], x.shape[:2])
  # The outputs of ancestors, and the trigrams of these and of itself.
  mask = nodes.of(tree.mask, 1)[:, :, :size]
  itself = jnp.arange(size)[None] == (
      nodes.start + jnp.arange(nodes.width))[:, None]
  mask = jnp.concatenate([mask, mask & ~itself[None]], axis=-1)
  view, = views.of(spec.config.layer, state.cache, places, mask)
  slots = jnp.arange(cache_lib.capacity(state.cache))[None, None]
  # The trigram of the root is in the cache and in the block.
  trigrams = slots < length[:, None, None] - 1
  view = view._replace(prefix=jnp.concatenate([view.prefix, trigrams], -1),
                       span=None)
  out, block = _forward(spec, params, x, draft.context, draft.block,
                        nodes.start, view)
  block = _write(block, _keys(spec, params, out, places), size + nodes.start)
  before = jnp.broadcast_to(state.feature[:, None], out.shape)
  output = lambda i, *pair: _output(spec, params, *pair, i)
  return assembly.by_level(level, spec.config.heads, output, before, out), (
      draft.replace(block=block))


def _grams(recent, tokens):
  """Returns `[B, T, 3]`: each of `tokens [B, T]` after the two before it."""
  text = jnp.concatenate([recent[:, 1:], tokens], axis=1)
  return _whole(jnp.stack([text[:, :-2], text[:, 1:-1], text[:, 2:]], axis=-1))


def _whole(grams):
  """Puts the next token where there is none."""
  first, second, third = jnp.moveaxis(grams, -1, 0)
  second = jnp.where(second == NONE, third, second)
  return jnp.stack([jnp.where(first == NONE, second, first), second, third],
                   axis=-1)


def _encode(spec, params, target_params, grams):
  x = target_ends.embed(spec.target, target_params, grams)
  return _apply(spec, params, "encode", x.reshape(*x.shape[:-2], -1))


def _forward(spec, params, x, context, block, slot, view):
  out, (keys, values) = _apply(
      spec, params, "forward", x,
      (*context, block.keys[0], block.values[0]), slot, view)
  return out, Block((keys,), (values,))


def _keys(spec, params, x, places):
  """Returns keys `[B, H, C, T]` and values `[B, H, T, C]` of `[B, T, F]`."""
  layer, (batch, width) = spec.config.layer, places.shape
  nothing = prefix_layers.empty_cache(layer, batch)
  view, = prefix_layers.alone(layer, nothing, places)
  _, block = _forward(spec, params, x, (nothing.keys[0], nothing.values[0]),
                      cache_lib.init_block(nothing, width), 0, view)
  return block.keys[0], block.values[0]


def _write(block, fresh, slot):
  """Returns the block with keys and values from a slot on."""
  put = jax.lax.dynamic_update_slice_in_dim
  return Block((put(block.keys[0], fresh[0], slot, cache_lib.KEY_SLOTS),),
               (put(block.values[0], fresh[1], slot, cache_lib.VALUE_SLOTS),))


def _output(spec, params, before, out, level):
  return _apply(spec, params, "logits", jnp.concatenate([before, out], -1),
                level)


def _apply(spec, params, method, *args):
  return _Chimera(*spec[:2]).apply({"params": params}, *args, method=method)


def init(key, config: Config, target):
  """Returns random parameters."""
  layer = config.layer
  dtype = jnp.dtype(layer.dtype)
  cache, _, (view,) = prefix_layers.abstract_inputs(layer)
  kv = (cache.keys[0], cache.values[0]) * 2
  return _Chimera(config, target).lazy_init(
      key, jax.ShapeDtypeStruct((1, 1, _GRAM * layer.dim), dtype), kv,
      view)["params"]


def _config(folder):
  return Config(formats.layer_of(folder.target), folder.fields[
      "chimera_num_heads"]), formats.last(folder.target)


def _names(config, _):
  trigram, layer, outputs = _PARTS
  return {**formats.linear("gram", f"{trigram}.0.linear"),
          **formats.linear("gram_out", f"{trigram}.1"),
          **{f"head_{i}": f"{outputs}.{i}.0.weight"
             for i in range(config.heads)},
          **formats.layer_names("layer", f"{layer}.0")}


FORMAT = formats.Format(
    _config, _names,
    lambda config, kept, dtype: {"chimera_num_heads": config.heads},
    "chimera_num_heads", files=(
        {"chimera.safetensors": ""}, {f"{x}.pt": f"{x}." for x in _PARTS}),
    known={"chimera_num_heads": formats.COUNT},
    unused=("fast_layer1.0.self_attn.rotary_emb.inv_freq",))
KINDS = {"chimera": training.Kind(
    lambda target, depth: Config(formats.layer_of(target), depth),
    training.of_pairs(_rounds), feature_weight=1,
    begin=training.from_output_layer)}
