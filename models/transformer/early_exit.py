"""Early exit: the first layers of a decoder, as a drafter for all of them.

After some of its layers a decoder often knows the next token already. Its last
norm and output layer read that off the residual stream; a model trained for it
(Elhoushi et al. 2024, "LayerSkip", arXiv 2404.16710) exits best. The drafter
has the parameters of its target, the same arrays, and a cache of its own.
"""

import dataclasses
import functools
import numbers

from decoding_jax import types
from models.transformer import architecture
from models.transformer import language_models


def early_exit(config: architecture.Config,
               num_layers: int) -> types.LanguageModel:
  """Returns the first layers of a decoder, with its norm and output layer.

  Args:
    config: the architecture of the whole decoder.
    num_layers: layers that run, 1 to all but one.

  Returns:
    A `LanguageModel`. Its parameters are the whole decoder's, of which it reads
    a part; equal arguments give the same object.

  Raises:
    ValueError: for a number of layers that is not allowed, or for anything but
      the architecture of a transformer.
  """
  return _language_model(config, _checked(config, num_layers))


def first_layers(config: architecture.Config,
                 num_layers: int) -> architecture.Config:
  """Returns the architecture that `early_exit` runs; arguments as there."""
  return dataclasses.replace(config, num_layers=_checked(config, num_layers))


@functools.lru_cache(maxsize=None)
def _language_model(config, num_layers):
  # Those that do not run are not read, be they scanned or not.
  lm = language_models.language_model(first_layers(config, num_layers))
  return lm._replace(abstract_params=functools.partial(
      language_models.needed_params, config))


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
