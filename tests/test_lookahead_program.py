"""What the compiler makes of CDLH and CDSL."""

import importlib

import jax
import jax.numpy as jnp
import pytest

import decoding_jax as dj
import models_for_tests as tiny
from decoding_jax import sampling
from models import transformer

generate = importlib.import_module("decoding_jax.generate")

ROWS, SLOTS, CANDIDATES = 2, 2048, 6
CONFIG = transformer.Config(
    vocab_size=32, dim=16, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=64, hidden_dim=32, max_length=SLOTS)


def cache_bytes():
  """Of a cache of one row."""
  model = transformer.language_model(CONFIG)
  cache = jax.eval_shape(lambda: model.init_cache(1, SLOTS))
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))


def temporaries(method, model):
  """Bytes that a generation needs beside arguments and results."""
  params = jax.eval_shape(lambda: transformer.init(jax.random.key(0), CONFIG))
  caches = jax.eval_shape(lambda: (model.init_cache(ROWS, SLOTS),) * 2)
  keys = jax.random.split(jax.random.key(0), ROWS)
  warp = sampling.warp(dj.Sampling(0), ROWS, CONFIG.vocab_size)
  lengths = jnp.full(ROWS, 5)
  return generate._generate.lower(
      method.greedy, model, model, tiny.table_reward(), 8, caches, keys,
      jnp.zeros((ROWS, 5), jnp.int32), lengths, params, params, warp,
      sampling.untempered(warp), jnp.int32(0), 1.0,
      jnp.zeros((ROWS, tiny.STATES))
  ).compile().memory_analysis().temp_size_in_bytes


METHODS = [lambda k: dj.methods.cdlh(k, 3), lambda k: dj.methods.cdsl(3, k)]


def growth(make, model):
  """Bytes that more candidates than one need."""
  return temporaries(make(CANDIDATES), model) - temporaries(make(1), model)


@pytest.mark.parametrize("make", METHODS, ids=["cdlh", "cdsl"])
def test_candidates_share_the_prefix(make):
  """No cache is copied for a candidate."""
  found = growth(make, transformer.language_model(CONFIG))
  assert found < cache_bytes() / 10


def test_control_copied_caches_are_seen():
  """A model that runs each fresh token on a cache of its own."""
  model = transformer.language_model(CONFIG)

  def forward(params, tokens, positions, cache, block, slot, mask):
    copies = tokens.shape[1]
    tile = lambda x: jnp.repeat(x, copies, axis=0)
    one = lambda x: x.reshape(-1, 1, *x.shape[2:])
    logits, _ = model.forward(
        params, one(tokens), one(positions), jax.tree.map(tile, cache),
        jax.tree.map(tile, block), slot, one(mask))
    return logits.reshape(*tokens.shape, -1), block

  found = growth(METHODS[0], model._replace(forward=forward))
  assert found > (CANDIDATES - 1) * cache_bytes() / 2
