"""Targets of several models or prompts: contrastive decoding, guidance.

A function combines the logits of models that share a vocabulary; what it gives
is a language model like any other, with the caches of all of them. So every
method that keeps a target's distribution keeps the combination's.

    target, params = guided.contrastive(expert, amateur), (expert_params,
                                                           amateur_params)
    dj.generate(..., method=dj.methods.rsd_s(3, 4), target=target,
                target_params=params, draft=amateur,
                draft_params=amateur_params)

is speculative contrastive decoding (arXiv 2311.08981) with a tree.

Classifier-free guidance is one model with two prompts, see `classifier_free`.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from decoding_jax import types
from decoding_jax.runtime import cache as cache_lib

# What is less is taken for this: a token that an amateur excludes is not made
# infinitely attractive by it.
_LEAST = -1e4


@functools.lru_cache(maxsize=None)
def contrastive(expert: types.LanguageModel, amateur: types.LanguageModel,
                alpha: float = 0.1, beta: float = 0.5) -> types.LanguageModel:
  """Contrastive decoding (arXiv 2210.15097), sampled as in arXiv 2311.08981.

  The logits are (1 + beta) log p_expert - beta log p_amateur of tokens with
  p_expert >= alpha max p_expert, and -inf of others. 0 < `alpha` <= 1, `beta`
  is not negative. The model's parameters are (expert's, amateur's).
  Raises ValueError for other numbers, or models of different vocabularies.
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

  The logits are log p_base + scale (log p_tuned - log p_untuned), of a large
  model and a small one after and before tuning. The model's parameters are
  a tuple of the three models'. Raises ValueError for models of different
  vocabularies, or a scale that is no number.
  """
  if not math.isfinite(scale):
    raise ValueError(f"scale={scale!r}: a number is needed.")

  def mix(base, tuned, untuned):
    return base + scale * (jnp.maximum(tuned, _LEAST) -
                           jnp.maximum(untuned, _LEAST))

  return combined((base, tuned, untuned), mix)


def mixture(models, weights=None) -> types.LanguageModel:
  """A mixture of two or more models, of which several drafters are one.

  `methods.specinfer` with several models drafts by each of them instead.
  `weights` are positive, None for equal ones. The model's parameters are a
  tuple of the models'; equal arguments give the same object. Raises
  ValueError for models of different vocabularies, or weights that are not one
  positive number for each of them.
  """
  models = tuple(models)
  weights = (1.0,) * len(models) if weights is None else tuple(weights)
  if len(weights) != len(models) or not all(
      weight > 0 and math.isfinite(weight) for weight in weights):
    raise ValueError(f"weights={weights}: a positive number for each of "
                     f"{len(models)} models is needed.")
  return _mixture(models, tuple(weight / sum(weights) for weight in weights))


@functools.lru_cache(maxsize=None)
def _mixture(models, shares):
  def mix(*log_probs):
    return functools.reduce(jnp.logaddexp, (
        math.log(share) + x for share, x in zip(shares, log_probs)))

  return combined(models, mix)


class GuidedParams(NamedTuple):
  """Parameters of `classifier_free`."""
  model: types.Params  # Of the model itself
  # A cache of one row, of the negative prompt without its last token
  prefix: types.Cache
  last: types.Array  # `[]` int32, that token


def classifier_free(model: types.LanguageModel, params: types.Params,
                    negative_prompt, scale: float = 1.5):
  """Classifier-free guidance (arXiv 2306.17806): one model, two prompts.

  The logits are log p_negative + scale (log p - log p_negative), p being the
  model after prompt and text, p_negative after the negative prompt and the same
  text. A negative prompt of the token that begins a text leaves the prompt out.

  A call runs the model twice. It also copies the cache of the negative prompt,
  in which the text follows at once, while it has its slots after the prompt.

  `negative_prompt` has one or more token ids `[n]`, of all rows; a `scale` of 1
  is the model itself, more keeps closer to the prompt. Returns the language
  model and its parameters; models of equal arguments are the same object,
  whatever the ids are, if they are equally many. Raises ValueError for ids, or
  a number of them, that the model does not have, or a scale that is not above
  0.
  """
  tokens = np.asarray(negative_prompt)
  if tokens.ndim != 1 or not len(tokens) or not np.issubdtype(
      tokens.dtype, np.integer) or not (
          (0 <= tokens) & (tokens < model.vocab_size)).all():
    raise ValueError(f"negative_prompt={negative_prompt!r}: some token ids of "
                     f"0 to {model.vocab_size - 1} are needed.")
  if model.max_length and len(tokens) > model.max_length:
    raise ValueError(f"negative_prompt has {len(tokens)} tokens: the model has "
                     f"{model.max_length} positions.")
  if not (scale > 0 and math.isfinite(scale)):
    raise ValueError(f"scale={scale!r}: a number above 0 is needed.")
  tokens = jnp.asarray(tokens, jnp.int32)
  return _classifier_free(model, len(tokens) - 1, float(scale)), GuidedParams(
      params, _read(model, params, tokens[None, :-1]), tokens[-1])


@functools.partial(jax.jit, static_argnums=0)
def _read(model, params, tokens) -> types.Cache:
  """Returns a cache of the tokens `[1, n]`, which has no other slots."""
  cache, size = model.init_cache(1, tokens.shape[1]), tokens.shape[1]
  if size:
    _, block = cache_lib.whole_pass(model, params, tokens)
    cache = cache_lib.with_arrays(cache, block).replace(
        length=jnp.full(1, size, jnp.int32))
  return model.after_prompt(params, cache) if model.after_prompt else cache


@functools.lru_cache(maxsize=None)
def _classifier_free(model, prefix_length, scale) -> types.LanguageModel:
  """Returns the model of a negative prompt of `prefix_length + 1` tokens. Its
  feature "begin", `[B, S]`, is where each row's text begins, in the first slot;
  0 until the prompt is read."""
  pair = model, model

  @functools.cache
  def name():
    return cache_lib.unused("begin", _joined(
        map(cache_lib.shapes, pair)).features)

  def joined(parts, begin):
    block = _joined(parts)
    return block.replace(features={**block.features, name(): begin})

  def init_cache(batch, capacity):
    cache = model.init_cache(batch, capacity)
    return cache_lib.with_arrays(cache, joined(
        [cache, cache], jnp.zeros((batch, capacity), jnp.int32)))

  def forward(params, tokens, positions, cache, block, slot, mask):
    begin = cache.features[name()][:, :1]
    if not begin.size:
      begin = jnp.zeros_like(cache.length[:, None])
    (own, other), blocks = _split(pair, cache), _split(pair, block)
    given, block_given = model.forward(params.model, tokens, positions, own,
                                       blocks[0], slot, mask)
    # The token before the text is the other prompt's.
    tokens = jnp.where(positions == begin, params.last, tokens)
    negative, block_negative = model.forward(
        params.model, tokens, positions - begin + prefix_length,
        _after_prefix(params.prefix, other, begin, prefix_length), blocks[1],
        slot, mask)
    given, negative = (jax.nn.log_softmax(x.astype(jnp.float32))
                       for x in (given, negative))
    negative = jnp.maximum(negative, _LEAST)
    return negative + scale * (given - negative), joined(
        [block_given, block_negative], block.features[name()])

  def after_prompt(params, cache):
    own, other = _split(pair, cache)
    if model.after_prompt:
      own = model.after_prompt(params.model, own)
    return cache_lib.with_arrays(cache, joined([own, other], jnp.broadcast_to(
        cache.length[:, None], cache.features[name()].shape)))

  def abstract_params():
    inner = model.abstract_params() if model.abstract_params else ...
    return GuidedParams(inner, ..., jax.ShapeDtypeStruct((), jnp.int32))

  return types.LanguageModel(
      init_cache, forward, model.vocab_size,
      model.max_length and max(model.max_length - prefix_length, 1),
      after_prompt, abstract_params)


def _after_prefix(prefix, cache, begin, prefix_length) -> types.Cache:
  """Returns a cache of the prefix, and of each row's slots from `begin` on."""
  def follow(prefix, x, row_axis, slot_axis):
    size = x.shape[slot_axis]
    order = jnp.minimum(begin + jnp.arange(size)[None], size - 1)
    shape, of_prefix = [1] * x.ndim, list(prefix.shape)
    shape[row_axis], shape[slot_axis] = order.shape
    of_prefix[row_axis] = len(begin)
    return jnp.concatenate([
        jnp.broadcast_to(prefix, of_prefix),
        jnp.take_along_axis(x, order.reshape(shape), slot_axis)], slot_axis)

  return cache_lib.with_arrays(cache, cache_lib.map_arrays(
      follow, prefix, cache)).replace(
          length=cache.length - begin[:, 0] + prefix_length)


def combined(models, mix) -> types.LanguageModel:
  """Returns the model whose logits are a function of several models' logits.

  `mix` is `(*log_probs [B, T, V] float32) -> logits [B, T, V]`. The model's
  parameters are a tuple of the models'. Equal arguments give different
  models: keep one. Raises ValueError if the vocabularies differ.
  """
  sizes = [model.vocab_size for model in models]
  if len(set(sizes)) > 1:
    raise ValueError(f"vocab_size={sizes}: models that are combined need the "
                     "same vocabulary.")

  def init_cache(batch, capacity):
    caches = [model.init_cache(batch, capacity) for model in models]
    return cache_lib.with_arrays(caches[0], _joined(caches))

  def forward_each(params, tokens, positions, cache, block, slot, mask):
    outputs = [model.forward(own, tokens, positions, *parts, slot, mask)
               for model, own, *parts in zip(models, params, _split(
                 models, cache), _split(models, block))]
    return tuple(x for x, _ in outputs), _joined([x for _, x in outputs])

  def forward(*args):
    logits, block = forward_each(*args)
    return mix(*(jax.nn.log_softmax(x.astype(jnp.float32))
                 for x in logits)), block

  def after_prompt(params, cache):
    parts = [model.after_prompt(own, part) if model.after_prompt else part
             for model, own, part in zip(models, params,
                                         _split(models, cache))]
    return cache_lib.with_arrays(cache, _joined(parts))

  def abstract_params():
    return tuple(model.abstract_params() if model.abstract_params else ...
                 for model in models)

  return types.LanguageModel(
      init_cache, forward, sizes[0],
      min((x.max_length for x in models if x.max_length), default=0),
      after_prompt if any(x.after_prompt for x in models) else None,
      abstract_params, forward_each=forward_each, models=tuple(models))


def _names(parts) -> list[dict[str, str]]:
  """Returns the names that features of several models have in their union."""
  taken, names = set(), []
  for part in parts:
    names.append({})
    for name in sorted(part.features):
      names[-1][name] = cache_lib.unused(name, taken)
      taken.add(names[-1][name])
  return names


def _joined(parts) -> types.Block:
  """Returns the arrays of several caches or blocks, one after the other."""
  parts = list(parts)
  if any(getattr(part, "states", None) for part in parts):
    raise ValueError("combined or guided models with recurrent layers are not "
                     "supported.")
  chained = lambda name: tuple(itertools.chain.from_iterable(
      getattr(part, name) for part in parts))
  return types.Block(chained("keys"), chained("values"), {
      names[name]: x for part, names in zip(parts, _names(parts))
      for name, x in part.features.items()})


def _split(models, whole):
  shapes = list(map(cache_lib.shapes, models))
  keys, values = iter(whole.keys), iter(whole.values)
  return [whole.replace(
      keys=tuple(itertools.islice(keys, len(own.keys))),
      values=tuple(itertools.islice(values, len(own.values))),
      features={name: whole.features[new] for name, new in names.items()})
          for own, names in zip(shapes, _names(shapes))]
