"""Targets that are several models at once: contrastive decoding, proxy tuning.

A function combines the logits of models that share a vocabulary; what it gives
is a language model like any other, with the caches of all of them. So every
method that keeps a target's distribution keeps that of the combination.

    target, params = guided.contrastive(expert, amateur), (expert_params,
                                                           amateur_params)
    dj.generate(..., method=dj.methods.rsd_s(3, 4), target=target,
                target_params=params, draft=amateur,
                draft_params=amateur_params)

is speculative contrastive decoding (arXiv 2311.08981) with a tree.
"""

import functools
import itertools
import math

import jax
import jax.numpy as jnp

from decoding_jax import types

_PARTS = ("keys", "values", "features")
# What is less is taken for this: a token that an amateur excludes is not made
# infinitely attractive by it.
_LEAST = -1e4


@functools.lru_cache(maxsize=None)
def contrastive(expert: types.LanguageModel, amateur: types.LanguageModel,
                alpha: float = 0.1, beta: float = 0.5) -> types.LanguageModel:
  """Contrastive decoding (arXiv 2210.15097), sampled as in arXiv 2311.08981.

  The logits are (1 + beta) log p_expert - beta log p_amateur of tokens with
  p_expert >= alpha max p_expert, and -inf of others.

  Args:
    expert: the model that is improved.
    amateur: the model whose faults are avoided.
    alpha: share of the largest probability, above 0 up to 1.
    beta: strength of the contrast, not negative.

  Returns:
    The language model; its parameters are (those of expert, of amateur).

  Raises:
    ValueError: for numbers outside of these ranges, or models of different
      vocabularies.
  """
  if not 0 < alpha <= 1:
    raise ValueError(f"alpha={alpha!r}: a number above 0, up to 1, is needed.")
  if not (beta >= 0 and math.isfinite(beta)):
    raise ValueError(f"beta={beta!r}: a number that is not negative is needed.")

  def mix(expert, amateur):
    least = expert.max(axis=-1, keepdims=True) + math.log(alpha)
    contrast = (1 + beta) * expert - beta * jnp.maximum(amateur, _LEAST)
    return jnp.where(expert >= least, contrast, -jnp.inf)

  return combined((expert, amateur), mix)


@functools.lru_cache(maxsize=None)
def proxy_tuned(base: types.LanguageModel, tuned: types.LanguageModel,
                untuned: types.LanguageModel,
                scale: float = 1.0) -> types.LanguageModel:
  """Proxy tuning (arXiv 2401.08565): a large model, tuned by a small one.

  The logits are log p_base + scale (log p_tuned - log p_untuned).

  Args:
    base: the large model.
    tuned: a small model after tuning.
    untuned: the same before.
    scale: of the difference.

  Returns:
    The language model; its parameters are those of the three, a tuple.

  Raises:
    ValueError: for models of different vocabularies, or a scale that is no
      number.
  """
  if not math.isfinite(scale):
    raise ValueError(f"scale={scale!r}: a number is needed.")

  def mix(base, tuned, untuned):
    return base + scale * (jnp.maximum(tuned, _LEAST) -
                           jnp.maximum(untuned, _LEAST))

  return combined((base, tuned, untuned), mix)


def combined(models, mix) -> types.LanguageModel:
  """The model whose logits are a function of those of several models.

  Args:
    models: of one vocabulary.
    mix: `(*log_probs [B, T, V] float32) -> logits [B, T, V]`.

  Returns:
    The language model; its parameters are a tuple of those of the models. Equal
    arguments give different models: keep one.

  Raises:
    ValueError: if the vocabularies differ.
  """
  sizes = [model.vocab_size for model in models]
  if len(set(sizes)) > 1:
    raise ValueError(f"vocab_size={sizes}: models that are combined need the "
                     "same vocabulary.")

  def init_cache(batch, capacity):
    caches = [model.init_cache(batch, capacity) for model in models]
    return caches[0].replace(**_joined(caches))

  def forward(params, tokens, positions, cache, block, slot, mask):
    found = [model.forward(own, tokens, positions, *parts, slot, mask)
             for model, own, *parts in zip(models, params, _split(
                 models, cache), _split(models, block))]
    logits = mix(*(jax.nn.log_softmax(x.astype(jnp.float32))
                   for x, _ in found))
    return logits, block.replace(**_joined([x for _, x in found]))

  def after_prompt(params, cache):
    parts = [model.after_prompt(own, part) if model.after_prompt else part
             for model, own, part in zip(models, params,
                                         _split(models, cache))]
    return cache.replace(**_joined(parts))

  def abstract_params():
    return tuple(model.abstract_params() if model.abstract_params else ...
                 for model in models)

  return types.LanguageModel(
      init_cache, forward, sizes[0],
      min((x.max_length for x in models if x.max_length), default=0),
      after_prompt if any(x.after_prompt for x in models) else None,
      abstract_params)


def _joined(parts):
  """The arrays of several caches or blocks, one after the other."""
  return {name: tuple(itertools.chain(*(getattr(x, name) for x in parts)))
          for name in _PARTS}


def _split(models, whole):
  """The part of each model of a cache or block."""
  parts, at = [], dict.fromkeys(_PARTS, 0)
  for model in models:
    own = jax.eval_shape(functools.partial(model.init_cache, 1, 1))
    ends = {name: at[name] + len(getattr(own, name)) for name in _PARTS}
    parts.append(whole.replace(**{
        name: getattr(whole, name)[at[name]:ends[name]] for name in _PARTS}))
    at = ends
  return parts
