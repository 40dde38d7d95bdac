"""Draws of targets and drafters, and the logits after each context."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from models import prompt_lookup, tabular, transformer
from models.text import vocab_mapping
from support import masked_models, small_heads, tiny_models as tiny

HEADS = tuple(small_heads.HEADS)
# What drafts, and how often. Of a head the name of its format is the kind.
KINDS = ("table",) * 4 + ("lookup", "mapped", "mapped", "masked") + (
    "nothing",) * 2 + ("nothing to read", "layers", "transformer", "prompts")
_ON_TRANSFORMERS = ("nothing to read", "layers", "transformer", "prompts")
_CONFIGS = (tiny.LLAMA, tiny.GEMMA, tiny.NEOX, tiny.MIXTRAL, tiny.GPT_2)
DTYPES = ("float32", "float32", "bfloat16")


class Models(NamedTuple):
  """A target and a drafter, as `dj.generate` takes them."""
  target: dj.LanguageModel
  target_params: Any
  draft: Any
  draft_params: Any
  logits: dict  # From contexts to `[V]` float64 of the target
  drafter: str  # Of `random_methods.draw`
  dtype: str = "float32"


def is_transformer(kind):
  """Returns whether the target is one, of which rows cost more."""
  return kind in HEADS + _ON_TRANSFORMERS


def vocab_size(draws, kind):
  """Returns V of a target for this kind of drafter."""
  if kind == "masked":
    return masked_models.MASK
  return small_heads.TARGET.vocab_size if is_transformer(
      kind) else draws.size(3, 6)


def draw(draws, kind, contexts, dtypes=DTYPES):
  """Draws a target and a drafter."""
  if is_transformer(kind):
    config = small_heads.TARGET if kind in HEADS else dataclasses.replace(
        draws.one_of(*_CONFIGS), vocab_size=draws.vocab_size)
    target = _target(draws, config, contexts, dtypes)
    return _steady((_with_head if kind in HEADS else _transformers)(
        draws, kind, *target))
  target_table, draft_table = tables(draws)
  target, params = tabular.TabularLM(target_table)
  table = np.asarray(params.table, np.float64)
  draft, draft_params = _drafter(draws, kind, draft_table)
  return Models(target, params, draft, draft_params,
                {context: table[context[-1]] for context in contexts},
                kind if kind in ("masked", "nothing") else "model")


def tables(draws):
  """Returns logits `[V, V]` of a target and a draft; some are -inf."""
  rng, size = draws.rng, draws.vocab_size
  target, draft = (
      rng.dirichlet(np.full(size, draws.one_of(.3, .7, 2.)), size=size)
      for _ in range(2))
  if rng.random() < .3:
    draft = .7 * target + .3 * draft
  for table in (target, draft):
    if rng.random() < .25:
      table[np.arange(size), rng.integers(0, size, size)] = 0
  with np.errstate(divide="ignore"):
    return np.log(target), np.log(draft)


def _drafter(draws, kind, table):
  size = draws.vocab_size
  if kind == "nothing":
    return None, None
  if kind == "lookup":
    return prompt_lookup.language_model(size), ()
  if kind == "masked":
    return (dj.canvas.as_draft(masked_models.MODEL, size),
            masked_models.toy_params(draws.size(0, 99)))
  if kind == "mapped":
    return _mapped(draws)
  return tabular.TabularLM(table)


def _mapped(draws):
  """A drafter of another vocabulary, of which the target shares a part."""
  rng, size, other = draws.rng, draws.vocab_size, draws.size(2, 8)
  inner, params = tabular.TabularLM(
      np.log(rng.dirichlet(np.ones(other), size=other)))
  count = draws.size(1, min(size, other))
  places = rng.permutation(size)[:count]
  common, ids = np.zeros(size, bool), rng.integers(0, other, size)
  common[places], ids[places] = True, rng.permutation(other)[:count]
  return vocab_mapping.mapped(inner, size), vocab_mapping.MappedParams(
      params, vocab_mapping.Table(jnp.asarray(ids, jnp.int32),
                                  jnp.asarray(common)))


def _with_head(draws, kind, config, params, logits):
  draft, draft_params = small_heads.head(kind, config.dtype,
                                         draws.size(0, 2**16))
  return Models(small_heads.target(kind, config.dtype), params, draft,
                draft_params, logits, "head", config.dtype)


def _transformers(draws, kind, config, params, logits):
  plain = transformer.language_model(config)
  models = Models(plain, params, None, None, logits, "nothing", config.dtype)
  if kind == "layers":
    return models._replace(draft=transformer.early_exit(config, 1),
                           draft_params=params, drafter="model")
  if kind == "transformer":
    noisy = tiny.noisy(tiny.Model(plain, _cast(params, "float32")),
                       draws.one_of(.1, .5)).params
    return models._replace(draft=plain, drafter="model",
                           draft_params=_cast(noisy, config.dtype))
  if kind == "prompts":
    prompts = jnp.asarray(draws.rng.standard_normal((4, config.dim)),
                          config.dtype)
    return models._replace(
        target=transformer.with_prompts(config, 4), drafter="prompts",
        target_params={**params, "prompts": prompts})
  return models


def _target(draws, config, contexts, dtypes):
  """Returns the config, parameters, and logits of a random target."""
  narrow = dataclasses.replace(config, dtype=draws.one_of(*dtypes))
  while True:
    params = _cast(tiny.random_model(config, seed=draws.size(1, 2**16)).params,
                   narrow.dtype)
    logits, exact = (last_logits(x, _cast(params, x.dtype), contexts)
                     for x in (narrow, config))
    if _is_steady(logits, exact):
      return narrow, params, dict(zip(contexts, logits))


def last_logits(config, params, texts):
  """Returns `[n, V]` float64, the logits after each text, without a cache."""
  lengths = np.array([len(text) for text in texts])
  # Texts of other cases, of about as many, share the program.
  tokens = np.zeros((-len(texts) % 64 + len(texts), lengths.max()), np.int32)
  for row, text in zip(tokens, texts):
    row[:len(text)] = text
  logits = transformer.causal_logits(transformer.language_model(config), params,
                                     tokens)
  return np.asarray(logits, np.float64)[np.arange(len(texts)), lengths - 1]


def _steady(models):
  if models.dtype == "float32":
    return models
  target, params = _steadied(models.target, models.target_params, models.logits)
  return models._replace(target=target, target_params=params)


def _cast(params, dtype):
  return jax.tree.map(functools.partial(jnp.asarray, dtype=dtype), params)


# In 16 bits the logits after a text depend on the call that computes them: so
# there is no single distribution, and ever more texts tell roundings apart.
# So logits within rounding of one forward's are replaced by these. Others stay:
# a wrong mask or position, or a cache of rejected tokens, shows as in float32.

# Total variation, twice what a model may differ from itself in float32.
_TOLERANCE = 0.1


def _steadied(target, params, logits):
  """Returns a target with logits of its contexts, and its parameters."""
  size = target.vocab_size + 1
  table = np.full((size**max(map(len, logits)), target.vocab_size), np.nan)
  for context, row in logits.items():
    table[functools.reduce(lambda n, x: n * size + x + 1, context, 0)] = row
  steady, given = dj.processors.apply(
      _processor(size), jnp.asarray(table, jnp.float32), target, params)
  return _with_early_layers(steady, target), given


def _is_steady(logits, exact):
  """Returns whether rounding changes distributions little enough."""
  return float(_distance(logits, exact).max()) <= _TOLERANCE / 2


def _distance(logits, others):
  """Returns the total variation between distributions."""
  return jnp.abs(jax.nn.softmax(logits) - jax.nn.softmax(others)).sum(-1) / 2


@functools.lru_cache(maxsize=None)
def _processor(size):
  """Numbers contexts in base `size`; those that are too long stay so."""
  def advance(table, number, token):
    new = number * size + token + 1
    return jnp.where(number * size < len(table), new, len(table))

  def process(table, number, logits):
    known = table[jnp.minimum(number, len(table) - 1)]
    # Of an unknown context it is NaN, which is not within the tolerance.
    is_near = (number < len(table)) & (_distance(known, logits) <= _TOLERANCE)
    return jnp.where(is_near, known, logits)

  return dj.LogitsProcessor(lambda table: jnp.int32(0), advance, process,
                            reads_prompt=True)


@functools.lru_cache(maxsize=None)
def _with_early_layers(steady, target):
  """Gives a processed model the early layers of the model in it."""
  def early(layers, params, *args):
    return target.halves.early(layers, params.model, *args)

  return steady._replace(halves=target.halves._replace(early=early))
