"""What the compiler makes of the caches, first of all of CDLH and CDSL."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import pytest

from decoding_jax import sampling
import decoding_jax as dj
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.speculation import tree_decoder
from models import transformer
from support import tiny_models as tiny

ROWS, SLOTS, CANDIDATES = 2, 2048, 6
CONFIG = transformer.Config(
    vocab_size=32, dim=16, num_layers=1, num_heads=2, num_kv_heads=1,
    head_dim=64, hidden_dim=32, max_length=SLOTS)


def cache_bytes():
  """Of a cache of one row."""
  model = transformer.language_model(CONFIG)
  cache = jax.eval_shape(lambda: model.init_cache(1, SLOTS))
  return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))


@functools.lru_cache(maxsize=None)
def compiled(decoder, model, config=CONFIG):
  """The optimised program of a generation."""
  params = transformer.abstract_params(config)
  cache = jax.eval_shape(lambda: model.init_cache(ROWS, SLOTS))
  keys = jax.random.split(jax.random.key(0), ROWS)
  warper = sampling.make_warper(dj.Sampling(0), ROWS, CONFIG.vocab_size)
  context = tiny.context(
      model, params, jnp.zeros((ROWS, 5), jnp.int32), jnp.full(ROWS, 5), warper,
      draft_warper=sampling.without_temperature(warper),
      reward=tiny.table_reward(), reward_params=1.0,
      constraints=jnp.zeros((ROWS, tiny.STATES)))
  return tiny.generate_lib._generate.lower(
      decoder, 8, context, (cache, cache if decoder.needs_draft else None),
      keys).compile()


METHODS = [lambda k: dj.methods.cdlh(k, 3), lambda k: dj.methods.cdsl(3, k)]


def growth(make, model):
  """Bytes of memory that more candidates than one need."""
  many, one = (
      compiled(make(k).greedy, model).memory_analysis().temp_size_in_bytes
      for k in (CANDIDATES, 1))
  return many - one


@pytest.mark.parametrize("make", METHODS, ids=["cdlh", "cdsl"])
def test_candidates_share_the_prefix(make):
  result = growth(make, transformer.language_model(CONFIG))
  # What grows are the scores of attention.
  assert result < cache_bytes() / 2


def test_control_copied_caches_are_seen():
  model = transformer.language_model(CONFIG)

  def forward(params, tokens, positions, cache, block, slot, mask):
    copies = tokens.shape[1]
    tile = lambda x: jnp.repeat(x, copies, axis=0)
    one = lambda x: x.reshape(-1, 1, *x.shape[2:])
    logits, _ = model.forward(
        params, one(tokens), one(positions), jax.tree.map(tile, cache),
        jax.tree.map(tile, block), slot, one(mask))
    return logits.reshape(*tokens.shape, -1), block

  result = growth(METHODS[0], model._replace(forward=forward))
  assert result > (CANDIDATES - 1) * cache_bytes() / 2


def copies(program):
  """Lines of a program in which keys or values of a cache are copied."""
  sizes = f"64,{SLOTS}|{SLOTS},64"
  return [line for line in program.as_text().splitlines()
          if re.search(rf"= f32\[{ROWS},1,({sizes})\]\S* copy\(", line)]


PLAIN = dj.methods.autoregressive().greedy


@pytest.mark.parametrize("decoder", [
    METHODS[0](CANDIDATES).greedy, METHODS[1](CANDIDATES).greedy,
    tree_decoder.as_decoder(PLAIN)], ids=["cdlh", "cdsl", "autoregressive"])
def test_caches_are_written_where_they_lie(decoder):
  """In a step none is copied: all of it is read before it is written."""
  program = compiled(decoder, transformer.language_model(CONFIG))
  assert f"{ROWS},1,64,{SLOTS}" in program.as_text()
  assert not copies(program)


def test_a_step_needs_little_beside_its_caches():
  """Temporaries: 5 % of the caches, and the logits of the tree."""
  config = dataclasses.replace(CONFIG, num_layers=4)
  model = transformer.language_model(config)
  memory = compiled(tree_decoder.decoder_of(dj.methods.rsd_s(2, 2), False),
                    model, config).memory_analysis()
  cache = jax.eval_shape(lambda: model.init_cache(ROWS, SLOTS))
  caches = 2 * sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(cache))
  logits = 4 * ROWS * 5 * CONFIG.vocab_size
  assert memory.temp_size_in_bytes < caches / 20 + logits
  assert memory.alias_size_in_bytes >= caches


def test_control_a_commit_that_does_not_wait_is_a_copy(monkeypatch):
  """Control of the test above."""
  def copied():
    # A new function, so that no program compiled with this is used elsewhere.
    decoder = tree_decoder.of_pair.__wrapped__(PLAIN)
    return copies(compiled(decoder, transformer.language_model(CONFIG)))

  assert not copied()
  monkeypatch.setattr(cache_lib, "await_logits", lambda slots, logits: slots)
  assert copied()
