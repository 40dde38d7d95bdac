"""A decoder's forward in two halves; the second may see fewer tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from decoding_jax import types
from models.transformer import decoder


def of(make, config, kept, prompts, forward) -> types.Halves:
  """Returns the halves of a decoder's forward.

  Where some layers are ahead of a scan there is the first half alone. The block
  of the first half has the residual stream after it as its last hidden
  state.

  Args:
    make: `(config, kept, prompts) -> LanguageModel`.
    config: the architecture.
    kept: layers whose outputs the decoder keeps.
    prompts: trained prompt tokens.
    forward: of the decoder.
  """
  return types.Halves(functools.partial(_early, make, config, kept, prompts),
                      functools.partial(_late, make, config, kept, prompts),
                      forward, 0 if config.scan_layers and config.layers_ahead
                      else config.num_layers)


def _early(make, config, kept, prompts, num_layers, params, tokens, positions,
           cache, mask):
  """See `types.Halves`."""
  count = min(num_layers, config.num_layers)
  own = tuple(i for i in kept if i < count)
  lm = make(dataclasses.replace(config, num_layers=count), (*own, count - 1),
            prompts)
  fresh = lm.init_cache(*tokens.shape)
  # Scanned layers are one array, of which the first ones are read.
  return lm.forward(
      params, tokens, positions, _of_layers(slice(count), cache),
      types.Block(fresh.keys, fresh.values, fresh.features), 0, mask)


def _late(make, config, kept, prompts, num_layers, params, early, positions,
          cache, mask):
  """See `types.Halves`."""
  fresh = make(config, kept, prompts).init_cache(*positions.shape)
  *own, x = early.features[types.HIDDEN_STATES]
  later = tuple(i for i in kept if i >= num_layers)
  rest = slice(num_layers, None)
  if config.scan_layers:
    block = jax.tree.map(lambda x: x[rest], types.Block(
        fresh.keys, fresh.values))
    join = lambda x, y: (jnp.concatenate([x[0], y[0]]),)
  else:
    block = types.Block(fresh.keys[rest], fresh.values[rest])
    cache, join = _of_layers(rest, cache), lambda x, y: x + y
  hidden = [x for x, i in zip(fresh.features.get(types.HIDDEN_STATES, ()), kept)
            if i in later]
  block = block.replace(
      features={types.HIDDEN_STATES: tuple(hidden)} if later else {})
  module = decoder.Decoder(config, later, prompts, first=num_layers)
  logits, block = module.apply(
      {"params": params}, jnp.zeros_like(positions), positions, cache, block, 0,
      mask, x)
  both = iter(own), iter(block.features.get(types.HIDDEN_STATES, ()))
  hidden = tuple(next(both[i >= num_layers]) for i in kept)
  return logits, types.Block(
      join(early.keys, block.keys), join(early.values, block.values),
      {types.HIDDEN_STATES: hidden} if kept else {})


def _of_layers(some, cache):
  """Returns a cache of some layers, without features."""
  def part(x):
    return x.replace(keys=x.keys[some], values=x.values[some], features={})

  return part(cache).replace(shared=cache.shared and part(cache.shared))
