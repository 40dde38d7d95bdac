"""Decodes with caches that are split by slots, and reads programs.

Run by `test_split_slots` with the names of methods, or with none for the
kernels and the program; prints JSON, a dict from what ran to what was found.
"""

import dataclasses
import json
import math
import sys

import jax
from jax.sharding import AxisType, PartitionSpec
import jax.numpy as jnp
import numpy as np

from decoding_jax import kernels
import decoding_jax as dj
from decoding_jax.kernels import split_slots
from decoding_jax.testing import exactness
from models import transformer
from models.heads import eagle
from models.transformer import sharding
from support import helpers, on_shards, tiny_models as tiny

# Key/value heads, and the sizes of "model" that do not divide them; 0 for the
# one of latent attention.
SIZES = {0: (4,), 1: (2, 4, 8), 2: (4, 8), 3: (2, 4, 8)}
# On more devices the target's own cache drafts a little otherwise: at
# temperature 0 texts are the same.
METHODS = {"plain": dj.methods.autoregressive(),
           "rsd_s": dj.methods.rsd_s(2, 2), "head": dj.methods.rsd_s(2, 2),
           "window": dj.methods.rsd_s(2, 2)}
ROWS, PROMPT, NEW = 3, 9, 10
# A number that no axis but that of channels has, in the program that is read.
CHANNELS = 14
MANY, COUNTED, FEW = 12_000, 3, 4


def config(heads):
  """A target; three key/value heads are no part of any device's heads."""
  if not heads:
    return dataclasses.replace(tiny.DEEPSEEK_3, num_heads=8,
                               tie_embeddings=True)
  return dataclasses.replace(
      tiny.LLAMA, num_heads=24 if heads == 3 else 8, num_kv_heads=heads,
      hidden_dim=48, tie_embeddings=True, window=6, full_every=2)


# Layers of a draft are split over 2 and 4 devices, not over 8: there each has
# all queries.
DRAFT = dataclasses.replace(tiny.LLAMA, num_kv_heads=1, tie_embeddings=True)


class Run:
  """Arguments of a generation, on one device or so many."""

  def __init__(self, number, name, target, draft=DRAFT, split=True):
    self.mesh = jax.make_mesh((1, number), (sharding.DATA, sharding.MODEL),
                              axis_types=(AxisType.Auto,) * 2)
    self.number, self.split = number, split
    kept = dict(kept=(0,)) if name == "head" else {}
    self.target = self.model(target, **kept)
    self.draft = self.model(draft)
    if name == "head":
      head = eagle.Config(dataclasses.replace(DRAFT, max_length=0), version=1)
      self.draft = (sharding.head(eagle.head(head, target)) if number > 1 else
                    eagle.head(head, target), eagle.init(
                        jax.random.key(5), head, target))
    if name == "window":
      self.draft = (self.wrap(transformer.recent_window(target, 5)),
                    self.target[1])
    if name == "plain":
      self.draft = None, None

  def model(self, config, kept=()):
    """A model and its parameters, where they belong."""
    lm = transformer.with_features(config, kept) if kept else (
        transformer.language_model(config))
    params = tiny.random_model(config, seed=config.num_kv_heads).params
    size = self.number if self.number in sharding.partition(config) else 1
    params = jax.device_put(params, sharding.shardings(config, self.mesh, size)(
        params))
    return self.wrap(lm), params

  def wrap(self, lm):
    """The model as it computes on so many devices."""
    return sharding.language_model(lm) if self.number > 1 and self.split else lm

  def generate(self, method, prompts, lengths, new, sampling):
    """Texts, and the text of the program."""
    def decode(keys, params):
      return dj.generate(
          keys, prompts, lengths, method=method, target=self.target[0],
          target_params=params[0], draft=self.draft[0], draft_params=params[1],
          max_new_tokens=new, sampling=sampling)

    if self.number > 1:
      decode = jax.shard_map(
          decode, mesh=self.mesh, in_specs=PartitionSpec(),
          out_specs=PartitionSpec(), axis_names={sharding.DATA},
          check_vma=False)
    arguments = (jax.random.split(jax.random.key(1), len(prompts)),
                 (self.target[1], self.draft[1]))
    program = jax.jit(decode).lower(*arguments).compile()
    return jax.tree.map(np.asarray, program(*arguments)), program.as_text()


def texts(name, heads, number):
  """Texts of ragged prompts."""
  rng = np.random.default_rng(0)
  prompts = rng.integers(0, 13, (ROWS, PROMPT)).astype(np.int32)
  target = config(heads)
  if name == "window":
    target = dataclasses.replace(target, window=0)
  return Run(number, name, target).generate(
      METHODS[name], prompts, np.array([PROMPT, 2, 1]), NEW,
      dj.Sampling(0.0 if name == "window" else 0.9))[0]


def compared(name):
  """What each number of devices makes of a method, next to one device."""
  results = {}
  for heads, sizes in SIZES.items():
    one = texts(name, heads, 1)
    for number in sizes:
      out = texts(name, heads, number)
      results[f"{name} {heads} {number}"] = {
          "same": bool((out.tokens == one.tokens).all()),
          "off": float(np.abs(out.log_probs - one.log_probs).max())}
  return results


def whole(x, number):
  """The numbers of all devices, slots in order."""
  if not isinstance(x, kernels.SplitSlots):
    return np.asarray(x)
  array, shape = np.asarray(x.array), x.shape
  split = array.reshape(*array.shape[:-3], number // x.ways, x.ways, -1,
                        *array.shape[-2:])
  return np.moveaxis(split, -4, x.axis).reshape(shape)


def differences(heads, groups, number, slots=24, latent=0):
  """What commits and attentions of so many devices do otherwise than one."""
  rng = np.random.default_rng(0)
  rows, tokens, channels = 4, 5, 3
  width = latent or channels
  draw = lambda *shape: rng.normal(size=shape).astype(np.float32)
  blocks = [(draw(2, rows, heads, channels, 7), draw(2, rows, heads, 7, width))
            for _ in range(5)]
  q = draw(rows, tokens, heads, groups, channels + latent)
  # Into a slot of each device, over the last device's, and moved back.
  starts = np.array([[0, 1, 2, 3], [4, 6, 7, 8], [9, 8, 17, 12],
                     [10, 13, 18, 16], [slots, 11, 19, 20]], np.int32)
  counts = 4, 7, 1, 2, 3
  order = [rng.integers(0, 7, (rows, k)).astype(np.int32) for k in counts]
  mask = np.tril(np.ones((7, 7), bool))[None, 2:]

  def each(q, blocks):
    shapes = ((2, rows, heads, channels, slots), (2, rows, heads, slots, width))
    cache = tuple((split_slots.zeros(x, jnp.float32, axis),)
                  for x, axis in zip(shapes, (-1, -2)))
    results = []
    for (keys, values), at, start in zip(blocks, order, starts):
      cache = kernels.commit(*cache, (keys,), (values,), at, start)
      length = jnp.minimum(start + at.shape[1], slots)
      keys, values = (jax.tree.map(lambda x: x[1], x) for x in (keys, values))
      first = length[:, None] - jnp.arange(tokens)[None] * 2
      slot = jnp.arange(slots)[None, None]
      seen = slot < length[:, None, None]
      for begin in (None, first):
        there = seen if begin is None else seen & (slot >= begin[..., None])
        prefix = (*(jax.tree.map(lambda x: x[1], x[0]) for x in cache), there)
        for span in ((), (kernels.Span(length, begin),)):
          results.append(kernels.attention(q, [
              (*prefix, *span), (keys, values, mask)], cap=2.0))
    return cache, results

  (one, expected), (split, actual) = (
      jax.jit(on_shards.on_devices(each, n))(q, blocks) for n in (1, number))
  split = [whole(x, number) for x, in split]
  return {
      "ways": number // math.gcd(heads, number),
      "same": all(bool((a == b).all()) for (a,), b in zip(one, split)),
      "off": max(float(np.abs(a - b).max()) for a, b in zip(expected, actual))}


def program(number, split=True):
  """What a program holds of a cache, and exchanges in a step."""
  target = dataclasses.replace(
      tiny.LLAMA, num_heads=8, num_kv_heads=1, head_dim=CHANNELS,
      max_length=2048, window=0)
  prompts = np.full((ROWS, PROMPT), 5, np.int32)
  _, text = Run(number, "plain", target, split=split).generate(
      METHODS["plain"], prompts, np.full(ROWS, PROMPT), 1000, dj.Sampling(0.9))
  slots = 1024
  sizes = [np.prod([*map(int, dims.split(","))])
           for _, dims in on_shards.ARRAY.findall(text)
           if str(CHANNELS) in dims.split(",")]
  return {"share": float(max(sizes) / (ROWS * CHANNELS * slots)),
          "bytes": exchanged(text)}


def exchanged(text):
  """Bytes that the layers of a step bring to a device, each operation once."""
  lines = [line for line in text.splitlines()
           if "/while/" in line and "(prefill)" not in line]
  return on_shards.bytes_of(filter(None, map(on_shards.EXCHANGE.search, lines)))


def p_value(number=4):
  """How the first tokens of a method fit their joint distribution."""
  target = dataclasses.replace(config(1), vocab_size=FEW)
  draft = dataclasses.replace(DRAFT, vocab_size=FEW)
  prompts = np.tile(np.array([[1, 3, 0, 2, 2, 1]], np.int32), (MANY, 1))
  length = prompts.shape[1]
  run = Run(number, "rsd_s", target, draft)
  out, _ = run.generate(METHODS["rsd_s"], prompts, np.full(MANY, length),
                        COUNTED + 1, dj.Sampling(1.0))
  texts = np.asarray(out.tokens)[:, length:length + COUNTED]
  counts = exactness.count(texts, FEW)
  model = tiny.random_model(target, seed=target.num_kv_heads)
  return exactness.p_value(counts, helpers.joint_of_model(model, prompts[0],
                                                          COUNTED))


def forgetful(layout, result, shape, divides):
  """A merge that gives all devices the same weight."""
  y, log_sum = result
  return merged(layout, (y, jnp.zeros_like(log_sum)), shape, divides)


merged = split_slots._merged  # pylint: disable=protected-access


def main(*names):
  results = {}
  for name in names:
    results.update(compared(name))
  if not names:
    results["kernels"] = {
        f"{heads}x{groups} {n}": differences(heads, groups, n, slots)
        for heads, groups, n, slots in (
            (1, 4, 2, 24), (1, 8, 8, 24), (2, 4, 4, 24), (2, 3, 4, 24),
            (3, 8, 8, 24), (3, 2, 6, 24), (6, 2, 4, 24), (2, 4, 2, 24),
            (2, 4, 8, 26))}
    results["kernels"]["latent"] = differences(1, 8, 4, latent=5)
    results["program"] = program(8)
    results["control"] = program(8, split=False)
  if "rsd_s" in names:
    results["p"] = p_value()
    # Layers are traced once.
    jax.clear_caches()
    split_slots._merged = forgetful
    results["control p"] = p_value()
  print(json.dumps(results))


if __name__ == "__main__":
  main(*sys.argv[1:])
