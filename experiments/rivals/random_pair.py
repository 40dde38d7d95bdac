"""Builds a target and a draft of any size with a given overlap.

Nothing is trained. The first channels of the residual stream hold a row of a
table that both models have, and no layer writes there; the head reads from them
the logits of a bigram distribution of low rank. The other channels are random,
differ between the models, and depend on the whole context. Logits are linear in
the scale of the final norm: two factors, one for the channels of the core and
one for the others, are chosen such that the target's samples have the
given perplexity, and both distributions the given overlap E sum min(t, d).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

import decoding_jax as dj
from models import transformer
from models.folders import atomic
from models.huggingface import convert

TARGET, DRAFT, METADATA = "target", "draft", "metadata.json"
# Largest allowed deviation of the overlap.
TOLERANCE = 0.01
# Root mean square of the core's channels. The others' is about 1, so that the
# final norm is nearly the core's.
_CORE_SCALE = 8.0
# Texts that the distributions are compared on. The first ones are random; then
# the target samples new ones until the overlap holds on texts not fitted to.
_ROWS, _LENGTH, _ROUNDS = 16, 64, 4
# Where scales are looked for, and how closely.
_LARGEST_SCALE, _PRECISION = 16.0, 4e-3


def make(settings):
  """Builds two (config, parameters) by `pair` of `configs/benchmark.py`, and
  their `overlap` and `perplexity`; ValueError if no pair can meet them.
  """
  _check(settings)
  # Measured in float32, on numbers rounded to the type of the files.
  configs = [transformer.Config(
      vocab_size=settings.vocab_size, max_length=settings.max_length,
      tie_embeddings=False, dtype="float32", **model)
             for model in (settings.target, settings.draft)]
  core = _core(settings)
  params = [_random(settings, config, core, number)
            for number, config in enumerate(configs)]
  texts = np.random.default_rng(settings.seed).integers(
      settings.vocab_size, size=(_ROWS, _LENGTH), dtype=np.int32)
  for number in range(_ROUNDS):
    parts = [_parts(settings, *model, texts) for model in zip(configs, params)]
    scales = _scales(settings, parts)
    models_ = [(config, _with_scales(settings, tree, scales / units))
               for config, tree, (_, units) in zip(configs, params, parts)]
    del parts  # Several gigabytes, with a large vocabulary.
    config, tree = models_[0]
    seed = settings.seed + number
    first = np.random.default_rng(seed).integers(config.vocab_size,
                                                 size=(_ROWS, 1))
    texts = sample(transformer.language_model(config), tree, seed,
                   first.astype(np.int32), _LENGTH)
    measured = measure(models_, texts)
    if abs(measured["overlap"] - settings.overlap) <= TOLERANCE:
      return *models_, measured
  raise ValueError(f"overlap={settings.overlap}: on other texts it is "
                   f"{measured['overlap']:.3f}; another seed may do.")


def write(folder, settings):
  """Writes the pair of `make` into a folder; returns figures and settings."""
  *models_, measured = make(settings)
  measured["settings"] = settings.to_dict()
  with atomic.replacing(folder) as partial:
    for name, (config, params) in zip((TARGET, DRAFT), models_):
      (partial / name).mkdir()
      convert.write(partial / name,
                    dataclasses.replace(config, dtype=settings.dtype), params)
    atomic.write_json(partial / METADATA, measured)
  return measured


def measure(models_, texts):
  """Measures E sum min(t, d) and perplexity on texts `[R, T]`, `[:, 1:]`."""
  distributions = [_logits(config, params, texts) for config, params in models_]
  overlap, perplexity = _figures(*distributions)
  return {"overlap": round(float(overlap), 4),
          "perplexity": round(float(perplexity), 2)}


def sample(lm, params, seed, first, length):
  """Samples texts `[R, length]` int32 of a model after tokens `[R, 1]`."""
  if length == 1:
    return first
  return np.asarray(dj.generate(
      jax.random.key(seed), first, np.ones(len(first), np.int32),
      method=dj.methods.autoregressive(), target=lm, target_params=params,
      max_new_tokens=length - 1).tokens)


def _check(settings):
  if not 0 < settings.overlap < 1:
    raise ValueError(f"overlap={settings.overlap}: above 0 and below 1 is "
                     "allowed.")
  if not 1 < settings.perplexity < settings.vocab_size:
    raise ValueError(f"perplexity={settings.perplexity}: above 1 and below "
                     f"vocab_size={settings.vocab_size} is allowed.")
  narrow = min(settings.target["dim"], settings.draft["dim"])
  if not 0 < settings.core < narrow:
    raise ValueError(f"core={settings.core}: 1 to {narrow - 1} channels are "
                     "allowed.")
  if settings.max_length < _LENGTH:
    raise ValueError(f"max_length={settings.max_length}: at least {_LENGTH} is "
                     "needed.")


def _core(settings):
  """Draws the shared tables `[V, core]`: of the stream, and of the head."""
  # Rows of the head have equal norms: else some token would be likely after all
  # others, and greedy texts would end in a short cycle.
  rng = np.random.default_rng([settings.seed, 2])
  stream, head = (_rows(rng, settings.vocab_size, settings.core)
                  for _ in range(2))
  return _CORE_SCALE * stream, head / settings.core**0.5


def _rows(rng, count, size):
  """Draws `[count, size]` random rows with root mean square 1."""
  x = rng.standard_normal((count, size), np.float32)
  return x / np.sqrt((x * x).mean(axis=1, keepdims=True))


def _random(settings, config, core, number):
  """Draws parameters around the core; the final norm has no scale yet."""
  rng = np.random.default_rng([settings.seed, number])
  rank, rest = settings.core, config.dim - settings.core
  own = {"embedding": _rows(rng, config.vocab_size, rest),
         "head": _rows(rng, config.vocab_size, rest) / rest**0.5}
  shared = dict(zip(own, core))
  # Scale that makes the channels of the first layer's input equally large.
  size = np.sqrt((rank * _CORE_SCALE**2 + rest) / config.dim)
  scale = np.where(np.arange(config.dim) < rank, size / _CORE_SCALE, size)

  def draw(path, leaf):
    name = transformer.param_name(path)
    if name in own:
      x = np.concatenate([shared[name], own[name]], axis=1)
    elif leaf.shape == (config.dim,):
      x = scale
    else:
      x = rng.standard_normal(leaf.shape, np.float32) / leaf.shape[1]**0.5
      if name.endswith(("out/kernel", "down/kernel")):
        x *= (2 * config.num_layers)**-0.5
        x[:rank] = 0
    return jnp.asarray(x, settings.dtype).astype(leaf.dtype)

  return jax.tree_util.tree_map_with_path(
      draw, transformer.abstract_params(config))


def _with_scales(settings, params, scales):
  order = jnp.arange(len(params["norm"]["scale"]))
  scale = jnp.where(order < settings.core, *scales)
  scale = scale.astype(settings.dtype).astype(jnp.float32)
  return {**params, "norm": {"scale": scale}}


def _parts(settings, config, params, texts):
  """Returns normalized logits `[R, T, V]` of core and rest, and scales."""
  logits = [_logits(config, _with_scales(settings, params, scales), texts)
            for scales in ((1.0, 0.0), (0.0, 1.0))]
  units = np.array([float(x.std(axis=-1).mean()) for x in logits])
  return [x / unit for x, unit in zip(logits, units)], units


def _scales(settings, parts):
  """Finds `[2]`, scales of the parts that give overlap and perplexity."""
  (target, _), (draft, _) = parts
  mixed = jax.jit(lambda scales: _figures(
      *(scales[0] * x[0] + scales[1] * x[1] for x in (target, draft))))
  scales = np.array([1.0, 0.1], np.float32)
  for _ in range(2):
    for part, figure, wanted in ((0, 1, settings.perplexity),
                                 (1, 0, settings.overlap)):
      scales[part] = _solve(
          lambda x: float(mixed(np.where(np.arange(2) == part, x, scales))[
              figure]), wanted, ("overlap", "perplexity")[figure])
  return scales


def _solve(figure, wanted, name):
  """Finds where a decreasing function has a value."""
  @functools.cache  # The ends are asked for twice.
  def excess(scale):
    return figure(np.float32(scale)) - wanted

  if not excess(_LARGEST_SCALE) < 0 < excess(0.0):
    raise ValueError(
        f"{name}={wanted}: these sizes allow "
        f"{excess(_LARGEST_SCALE) + wanted:.3g} to {excess(0.0) + wanted:.3g}.")
  return optimize.brentq(excess, 0.0, _LARGEST_SCALE, xtol=_PRECISION)


@functools.partial(jax.jit, static_argnums=0)
def _logits(config, params, texts):
  # The first token is random, no sample of the target.
  return transformer.causal_logits(
      transformer.language_model(config), params, texts)[:, 1:]


@jax.jit
def _figures(target, draft):
  t, d = (jax.nn.log_softmax(x) for x in (target, draft))
  overlap = jnp.exp(jnp.minimum(t, d)).sum(axis=-1).mean()
  return overlap, jnp.exp(-(jnp.exp(t) * t).sum(axis=-1).mean())
