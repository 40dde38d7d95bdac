"""Checks of the arguments of `canvas.generate`."""

import jax
import jax.numpy as jnp

from decoding_jax.canvas.types import Method
from decoding_jax.types import MaskedModel
from decoding_jax.validation import params as params_lib
from decoding_jax.validation import prompts as prompts_lib
from decoding_jax.validation import values


def check(prompts, prompt_lengths, *, method, model, params, length, block,
          eos_id, method_params, canvases, cache) -> None:
  """Raises a ValueError naming the first argument that does not fit."""
  for name, value, needed in (("method", method, Method),
                              ("model", model, MaskedModel)):
    if not isinstance(value, needed):
      raise ValueError(f"{name} is of type {type(value).__name__}: a canvas."
                       f"{needed.__name__} is needed.")
  check_model(model)
  prompts_lib.check(prompts, prompt_lengths, model.language_model.vocab_size)
  for name, value in (("length", length), ("block", block),
                      ("method.drafts", method.drafts)):
    values.check_positive(name, value)
  if length % block:
    raise ValueError(f"block={block} does not divide length={length}.")
  lm = model.language_model
  total = prompts.shape[1] + length
  if lm.max_length and total > lm.max_length:
    raise ValueError(f"prompts of width {prompts.shape[1]} and length={length} "
                     f"need {total} positions: the model has max_length="
                     f"{lm.max_length}.")
  _check_token("model.mask_id", model.mask_id, lm.vocab_size)
  if eos_id is not None:
    _check_token("eos_id", eos_id, lm.vocab_size)
  elif method.ends_text:
    raise ValueError(f"eos_id=None: method {method.name} predicts the end of a "
                     "text, and needs its token.")
  if (method_params is None) == method.needs_params:
    raise ValueError(
        f"method_params={'None' if method_params is None else '...'}: method "
        f"{method.name} has {'' if method.needs_params else 'no '}parameters.")
  if cache and method.drafts > 1 and not model.block_causal:
    raise ValueError(f"cache=True: method {method.name} has drafts, whose "
                     "cache is exact with model.block_causal=True alone; "
                     "cache=False is needed.")
  if canvases is not None and jnp.shape(canvases) != (len(prompts), length):
    raise ValueError(f"canvases has shape {jnp.shape(canvases)}: [B, L]="
                     f"{(len(prompts), length)} is needed.")
  params_lib.check("params", lm, params)


def check_model(model: MaskedModel) -> None:
  """Raises a ValueError for a model that reads tokens in their order alone."""
  lm = model.language_model
  if jax.eval_shape(lambda: lm.init_cache(1, 1)).states is not None:
    raise ValueError(
        "model: a masked-diffusion model of recurrent layers is not supported: "
        "its positions cannot see those after them. Attention in all layers is "
        "needed.")


def _check_token(name, token, vocab_size):
  if not values.is_integer(token) or not 0 <= token < vocab_size:
    raise ValueError(f"{name}={token!r}: 0 to {vocab_size - 1}, the model's "
                     "vocabulary, is needed.")
