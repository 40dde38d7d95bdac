"""Small masked models for tests, and decoding on a canvas in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np

import decoding_jax as dj
from decoding_jax.kernels import random

VOCAB, MASK, EOS = 7, 6, 0
# Distances at which tokens have influence, counted around.
_REACH = 5


def _init_cache(batch, capacity):
  del capacity
  return dj.Cache((), (), jnp.zeros(batch, jnp.int32))


def _forward(params, tokens, positions, cache, block, slot, mask):
  """Logits are sums over the visible tokens, by token and distance."""
  del cache, slot
  away = (positions[:, :, None] - positions[:, None]) % _REACH
  parts = params["table"][tokens[:, None], away]
  return jnp.sum(jnp.where(mask[..., None], parts, 0), axis=2), block


TOY = dj.LanguageModel(_init_cache, _forward, VOCAB)
MODEL = dj.canvas.MaskedModel(TOY, MASK)


def toy_params(seed=0, scale=0.8):
  """Returns the parameters of `TOY`."""
  rng = np.random.default_rng(seed)
  return {"table": jnp.asarray(
      scale * rng.normal(size=(VOCAB, _REACH, VOCAB)), jnp.float32)}


def toy_logits(params, tokens):
  """Returns `[T, V]` float64 of a whole text, in numpy."""
  table, order = np.asarray(params["table"], np.float64), np.arange(len(tokens))
  away = (order[:, None] - order[None]) % _REACH
  return table[np.asarray(tokens)[None], away].sum(axis=1)


def noise(key, length):
  """Returns the Gumbel noise `[L, V]` of one row."""
  return np.asarray(random.gumbel(key, length * VOCAB), np.float64).reshape(
      length, VOCAB)


def plain(rule, params, prompt, length, block, *, temperature=0.0, key=None,
          eos=EOS, canvas=None):
  """Fills one canvas in plain Python."""
  canvas = [MASK] * length if canvas is None else list(canvas)
  drawn = noise(key, length) if temperature else 0.0
  forwards = 0
  while True:
    end = canvas.index(eos) if eos in canvas else length
    open_ = [i for i in range(length) if canvas[i] == MASK]
    if not open_ or MASK not in canvas[:end] and end < length:
      return canvas[:end] + [eos] * (length - end), forwards
    logits = toy_logits(params, [*prompt, *canvas])[len(prompt):]
    logits[:, MASK] = -np.inf
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    tokens = np.argmax(logits / temperature + drawn if temperature else logits,
                       axis=1)
    forwards += 1
    first = open_[0] // block * block
    values = [(round(float(np.exp(log_probs[i, tokens[i]])) * 2**16) / 2**16, i)
              for i in open_ if i < first + block]
    for i in rule(values):
      canvas[i] = int(tokens[i])


def top(count):
  """Returns the rule of static decoding."""
  return lambda found: [i for _, i in sorted(
      found, key=lambda x: (-x[0], x[1]))[:count]]


def prompts(rows=4, width=5):
  """Returns right-padded prompts `[B, P]` and their lengths."""
  rng = np.random.default_rng(3)
  return (rng.integers(1, MASK, (rows, width)),
          np.resize([width, 3, 1, 4], rows))


def fill(method, temperature=0.0, **others):
  """Fills the canvases of `prompts` by the toy, or with other arguments."""
  rows, lengths = prompts()
  arguments = dict(
      key=jax.random.key(1), prompts=rows, prompt_lengths=lengths, model=MODEL,
      params=toy_params(), length=8, block=4, eos_id=EOS,
      sampling=dj.Sampling(temperature))
  return jax.device_get(dj.canvas.generate(
      method=method, **{**arguments, **others}))


def row_key(row):
  """Returns the key of a row of `fill`."""
  return random.fold_in(jax.random.key(1), row)
