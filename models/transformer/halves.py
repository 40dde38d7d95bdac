"""A decoder's forward in two halves; the second may see fewer tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from decoding_jax import types
from decoding_jax.runtime import cache as cache_lib
from models.transformer import decoder
from models.transformer import recurrence


def of(make, config, kept, prompts, forward) -> types.Halves:
  """Returns the halves of a decoder's forward. Where some layers are ahead of a
  scan, or have states, there is the first half alone. The block of the first
  half has the residual stream after it as its last hidden state. `make` is
  `(config, kept, prompts) -> LanguageModel`."""
  return types.Halves(functools.partial(_early, make, config, kept, prompts),
                      functools.partial(_late, make, config, kept, prompts),
                      forward, 0 if config.linear_key_heads or (
                          config.scan_layers and config.layers_ahead)
                      else config.num_layers)


def _early(make, config, kept, prompts, num_layers, params, tokens, positions,
           cache, mask):
  """See `types.Halves`."""
  count = min(num_layers, config.num_layers)
  own = tuple(i for i in kept if i < count)
  first = dataclasses.replace(config, num_layers=count)
  lm = make(first, (*own, count - 1), prompts)
  block = cache_lib.init_block(lm.init_cache(*tokens.shape), tokens.shape[1])
  # Scanned layers are one array, of which the first ones are read.
  attend = slice(recurrence.recurrent(first).count(False))
  return lm.forward(
      params, tokens, positions, _of_layers(attend, cache).replace(
          states=recurrence.first(cache.states, first)), block, 0, mask)


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
