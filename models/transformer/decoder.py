"""The decoder as a module: embeddings, layers, output layer."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import kernels
from decoding_jax import types
from decoding_jax.runtime import cache as cache_lib
from models.transformer import architecture
from models.transformer import gated_delta
from models.transformer import layer_stack
from models.transformer import layers
from models.transformer import linear_ops
from models.transformer import mamba2
from models.transformer import moe
from models.transformer import parameters
from models.transformer import quantization
from models.transformer import recurrence
from models.transformer import views as views_lib

# What layers have instead of attention, and its name among parameters.
_MIXERS = {"delta": (gated_delta.GatedDelta, "delta"),
           "mamba2": (mamba2.Mamba2, "mamba")}
# Layers of one shape share a trace.
_TracedOnce = nn.jit(layers.Layer)


class Decoder(nn.Module):
  """Token and position embedding, layers, output layer."""
  config: architecture.Config  # The architecture
  # Layers whose outputs the block keeps as hidden states; the number after the
  # last layer's is the input of the output layer
  kept: tuple[int, ...] = ()
  # Rows of a table that ids outside of the vocabulary name, -1, -2, ... and V,
  # V + 1, ...
  prompts: int = 0
  # The layer that runs first, on a residual stream that is given
  first: int = 0

  @nn.compact
  def __call__(self, tokens, positions, cache, block, slot, mask, stream=None,
               packed=None):
    """Implements `types.LanguageModel.forward`. Block and unscanned cache begin
    with the first layer; `stream [B, T, dim]`, if given, is its input instead
    of tokens."""
    cfg = self.config
    packing = None if packed is None else layers.packing(packed, tokens.shape)
    views = views_lib.of(cfg, cache, positions, mask, packing)
    if packing:
      tokens, positions = map(packing.packed, (tokens, positions))
    dtype = jnp.dtype(cfg.dtype)
    width = cfg.embedding_dim or cfg.dim
    matrix = quantization.initializer(layers.INIT, cfg.weights, is_table=True)
    declare = functools.partial(parameters.declare, self)
    vocab, whole = (parameters.VOCAB, None), parameters.WHOLE
    embedding = declare("embedding", matrix, (cfg.vocab_size, width), dtype,
                        vocab)
    known = (tokens >= 0) & (tokens < cfg.vocab_size)
    x = linear_ops.lookup(embedding, jnp.where(
        known, tokens, 0) if self.prompts else tokens).astype(dtype)
    if self.prompts:
      own = declare("prompts", layers.INIT, (self.prompts, width), dtype, whole)
      row = jnp.where(tokens < 0, -1 - tokens, tokens - cfg.vocab_size)
      x = jnp.where(known[:, :, None], x, own[jnp.clip(
          row, 0, self.prompts - 1)])
    if cfg.embedding_scale != 1:
      x *= jnp.asarray(cfg.embedding_scale, dtype)
    if cfg.embedding_dim:
      x = layers.Linear(cfg.dim, False, dtype, axes=whole,
                        name="project_in")(x)
    if cfg.positions == "learned":
      table = declare("positions", layers.INIT, (cfg.max_length, cfg.dim),
                      dtype, whole)
      x += linear_ops.lookup(table, positions)
    if self.first:
      x = stream
    stack = Scanned if cfg.scan_layers else Unrolled
    old = block.features
    inner = tuple(i for i in self.kept if i < cfg.num_layers)
    x, block, outputs = stack(cfg, inner, self.first, name="layers")(
        x, cache, block, slot, views)
    if not cfg.post_norm:
      x = layers.NORMS[cfg.norm](cfg, name="norm")(x)
    if cfg.embedding_dim:
      x = layers.Linear(width, False, dtype, axes=whole,
                        name="project_out")(x)
    outputs, rows = iter(outputs), packing.rows if packing else lambda x: x
    hidden = tuple(
        jax.lax.dynamic_update_slice_in_dim(
            kept, rows(next(outputs) if i < cfg.num_layers else x), slot, 1)
        for kept, i in zip(old.get(types.HIDDEN_STATES, ()), self.kept))
    block = block.replace(features={
        **block.features, **({types.HIDDEN_STATES: hidden} if self.kept else {})
    })
    head = embedding if cfg.tie_embeddings else declare(
        "head", matrix, (cfg.outputs or cfg.vocab_size, width), dtype, vocab)
    logits = rows(linear_ops.matmul(x, head))
    if cfg.logit_divisor != 1:
      logits /= cfg.logit_divisor
    return kernels.soft_cap(logits, cfg.logit_softcap), block


class Unrolled(nn.Module):
  """The layers, one after the other in the program."""
  config: architecture.Config
  kept: tuple[int, ...] = ()
  first: int = 0

  @nn.compact
  def __call__(self, x, cache, block, slot, views):
    states = ()
    if cache.states:
      # With one view it is both the first and the last.
      states = (recurrence.view(self.config, views[-1].block), list(zip(
          cache_lib.begun_states(cache), block.features[types.UPDATES])))
    x, block, outputs = _unrolled(self, x, list(zip(
        *views_lib.kv_of_layers(cache, block))), slot, views, states)
    return x, block, [outputs[i - self.first] for i in self.kept]


def _unrolled(module, x, kv, slot, views, states=()):
  """Goes through layers from `module.first` on, as many as are given. `kv` is a
  list of what each layer with attention reads. `states` are the view of layers
  with a state, and a list of the state and the updates of each; () in a model
  without. Returns `[B, T, F]`, a block, and each layer's output."""
  # A trace that is kept would declare no parameters for another mesh.
  layer = layers.Layer if module.is_initializing() else _TracedOnce
  view, own_states = states or (None, ())
  old, olds, fresh, updates, outputs = iter(kv), iter(own_states), [], [], []
  kinds = zip(recurrence.recurrent(module.config),
              views_lib.narrow(module.config))
  numbers = range(module.first, module.first + len(kv) + len(own_states))
  for i, (recurrent, narrow) in zip(numbers, list(kinds)[module.first:]):
    # With one view it is both the first and the last.
    layer_kv, seen, mixer, news = (
        (next(olds), view, _MIXERS[module.config.linear_layer], updates)
        if recurrent else
        (next(old), views[-1 if narrow else 0], None, fresh))
    x, new = layer(module.config.of_layer(i), mixer, name=f"layer_{i}")(
        x, layer_kv, None, slot, (seen,))
    news.append(new)
    outputs.append(x)
  keys, values = zip(*fresh) if fresh else ((), ())
  return x, types.Block(
      keys, values, {types.UPDATES: tuple(updates)} if states else {}), outputs


class Scanned(nn.Module):
  """The layers as a scan; parameters, cache and block have a layer axis.

  Parameters and cache may have more layers, of which the first run. Both
  are read where they lie: a slice of them, or of a layer, would be a copy.
  First layers without experts are not part of the scan. Parameters are unrolled
  layers', stacked: this module makes none.
  """
  config: architecture.Config
  kept: tuple[int, ...] = ()
  first: int = 0

  @nn.compact
  def __call__(self, x, cache, block, slot, views):
    ahead = self.config.layers_ahead
    kv = list(zip(*views_lib.kv_of_layers(cache, block)))
    x, block, outputs = _unrolled(self, x, kv[:ahead], slot, views)
    if ahead < self.config.num_layers:
      x, rest, others = self._scan(x, kv[ahead], slot, views)
      outputs += [others.get(i) for i in range(max(ahead, self.first),
                                               self.config.num_layers)]
      block = types.Block(block.keys + rest.keys, block.values + rest.values)
    return x, block, [outputs[i - self.first] for i in self.kept]

  def _scan(self, x, kv, slot, views):
    """Returns what `_unrolled` does, outputs of those that are kept."""
    config = self.config
    *kv, keys, values = kv
    numbers = range(max(self.first, config.layers_ahead), config.num_layers)
    narrow = (jnp.array(views_lib.narrow(config)[numbers.start:])
              if len(views) > 1 else None)
    fresh = keys, values
    # Not `nn.scan`, which would slice the parameters of experts, and of layers
    # that do not run.
    layer = layers.Layer(config, parent=None)
    params = self.variables["params"]["layer"]
    whole = not self.first and (
        len(jax.tree.leaves(params)[0]) == len(numbers))
    kept = sorted(set(self.kept) & set(numbers))

    def step(carry, at):
      x, outputs = carry
      number, fresh, narrow, output, own = at
      if own is None:
        own = jax.tree.map(lambda p: jax.lax.dynamic_index_in_dim(
            p, number, keepdims=False), params)
      if config.num_experts:
        own = _with_experts(own, params, number)
      x, fresh = layer.apply({"params": own}, x, (*kv, *fresh), narrow, slot,
                             [view.of_layer(number) for view in views])
      if kept:
        outputs = jax.lax.dynamic_update_index_in_dim(outputs, x, output, 0)
      return (x, outputs), fresh

    order = np.array(numbers, np.int32) - config.layers_ahead
    # Layers that are not kept write their outputs where nobody reads them.
    at = [kept.index(i) if i in kept else len(kept) for i in numbers]
    # Parameters that are all of the stack are given to the scan, which can be
    # differentiated at less cost.
    (x, outputs), (keys, values) = jax.lax.scan(
        step, (x, jnp.zeros((len(kept) + 1, *x.shape), x.dtype) if kept
               else None),
        (order, fresh, narrow, np.array(at, np.int32),
         params if whole else None))
    return x, types.Block((keys,), (values,)), {
        number: outputs[i] for i, number in enumerate(kept)}


def _with_experts(own, params, number):
  """Returns a layer's parameters; experts' are not sliced. A slice of
  all experts of a layer would be a copy, and few are used."""
  def leaf(path, x, stack):
    name = f"/{parameters.param_name(path)}"
    return layer_stack.InStack(stack, number) if moe.is_kernel(name) else x

  return jax.tree_util.tree_map_with_path(leaf, own, params,
                                          is_leaf=quantization.is_matrix)
