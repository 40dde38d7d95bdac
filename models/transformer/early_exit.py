"""Early exit: the first layers of a decoder, as a drafter for all of them.

After some of its layers a decoder often knows the next token already. Its last
norm and output layer read that off the residual stream; a model trained for it
(Elhoushi et al. 2024, "LayerSkip", arXiv 2404.16710) exits best. The drafter
has the parameters of its target, the same arrays, and a cache of its own.
"""

import dataclasses
import functools
import numbers

import flax.linen as nn
import jax
import jax.numpy as jnp

from decoding_jax import types
from models.transformer import architecture
from models.transformer import language_models
from models.transformer import layers
from models.transformer import views as views_lib


def early_exit(config: architecture.Config,
               num_layers: int) -> types.LanguageModel:
  """Returns the first layers of a decoder, with its norm and output layer.

  Args:
    config: the architecture of the whole decoder.
    num_layers: layers that run, 1 to all but one.

  Returns:
    A `LanguageModel`. Its parameters are those of the whole decoder, of which
    it reads a part; equal arguments give the same object.

  Raises:
    ValueError: for a number of layers that is not allowed, or for anything but
      the architecture of a transformer.
  """
  return _language_model(config, _checked(config, num_layers))


def first_layers(config: architecture.Config,
                 num_layers: int) -> architecture.Config:
  """Returns the architecture that `early_exit` runs; arguments as there."""
  return dataclasses.replace(config, num_layers=_checked(config, num_layers))


class FirstScanned(nn.Module):
  """The first layers of a scan's parameters, each read where it lies.

  A slice of all parameters, which a scan of fewer layers would need, is a copy.
  """
  config: architecture.Config
  kept: tuple[int, ...] = ()

  @nn.compact
  def __call__(self, x, cache, block, slot, views):
    config, params = self.config, self.variables["params"]["layer"]
    layer = layers.Layer(config, parent=None)

    def step(x, at):
      number, kv, narrow = at
      own = jax.tree.map(lambda p: jax.lax.dynamic_index_in_dim(
          p, number, keepdims=False), params)
      return layer.apply({"params": own}, x, kv, narrow, slot, views)

    kv = tuple(x[0] for x in views_lib.kv_of_layers(cache, block))
    narrow = (jnp.array(views_lib.narrow(config)) if len(views) > 1
              else None)
    order = jnp.arange(config.num_layers, dtype=jnp.int32)
    x, (keys, values) = jax.lax.scan(step, x, (order, kv, narrow))
    return x, types.Block((keys,), (values,)), []


@functools.lru_cache(maxsize=None)
def _language_model(config, num_layers):
  # Layers that are not scanned have names: those that do not run are not read.
  lm = language_models.of_stack(first_layers(config, num_layers), (),
                                FirstScanned if config.scan_layers else None)
  return lm._replace(abstract_params=functools.partial(
      language_models.abstract_params, config))


def _checked(config, num_layers) -> int:
  if not isinstance(config, architecture.Config):
    raise ValueError(f"config is of type {type(config).__name__}: early exit "
                     "needs the transformer.Config of the target.")
  if isinstance(num_layers, bool) or not (
      isinstance(num_layers, numbers.Integral)
      and 1 <= num_layers < config.num_layers):
    raise ValueError(
        f"num_layers={num_layers!r}: an early exit needs 1 to "
        f"{config.num_layers - 1} of the target's {config.num_layers} layers.")
  return int(num_layers)
