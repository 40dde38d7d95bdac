"""Layers with a state, through trees, commits, queues and caches that grow."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.runtime import cache as cache_lib, cache_growth, prefill
from decoding_jax.testing import conformance, exactness
from decoding_jax.validation import memory
from models import cacheless, guided, transformer
from models.heads import eagle
from models.heads.parts import formats
from models.transformer import language_models
from support import helpers, published_configs, tiny_models as tiny

TARGET = tiny.random_model(tiny.DELTA)
DRAFT = tiny.noisy(TARGET, 0.1)
MAMBA = tiny.random_model(tiny.MAMBA)
CONFIGS = pytest.mark.parametrize("config", [tiny.DELTA, tiny.MAMBA],
                                  ids=["delta", "mamba"])
BOTH = pytest.mark.parametrize("target", [TARGET, MAMBA],
                               ids=["delta", "mamba"])
B, T = 3, 7
TOKENS = np.random.default_rng(0).integers(0, 13, (B, T)).astype(np.int32)
PREFIX = np.array([1, 4, 6], np.int32)
TREE = np.random.default_rng(1).integers(0, 13, (B, 7)).astype(np.int32)


@functools.lru_cache(maxsize=None)
def plain(lm):
  return functools.partial(transformer.causal_logits, lm)


def stateless(*models):
  """The same models, which read each text from its beginning."""
  return tiny.Models(*(tiny.Model(cacheless.language_model(
      plain(x.lm), 13, tiny.DELTA.max_length), x.params) for x in models))


@pytest.mark.cases(1)
@BOTH
def test_a_path_is_committed_at_once_or_in_parts(target):
  """Updates stay what they are, whatever part of the path is in the cache."""
  cache = tiny.committed(target, TOKENS, PREFIX, 12)
  _, block = tiny.scored(target, cache, TREE)
  path = jnp.broadcast_to(jnp.array([0, 1, 4, 6]), (B, 4))
  count = jnp.array([4, 3, 0])
  once = cache_lib.commit(cache, block, path, count)
  parts = cache
  for i in range(4):
    parts = cache_lib.commit(parts, block, path[:, i:i + 1],
                             (i < count).astype(jnp.int32))
  # States reach 8: in another order, sums are off by some of its last digits.
  close = lambda a, b: np.testing.assert_allclose(a, b, 1e-6, 5e-5)
  jax.tree.map(close, parts.states, once.states)
  # Nothing is committed to the last row: its bits are the same.
  jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[2], b[2]),
               once.states.arrays, cache.states.arrays)
  # As if the text had been read so far.
  text = np.concatenate([TOKENS[0, :1], TREE[0, [0, 1, 4, 6]]])[None]
  jax.tree.map(
      lambda a, b: close(a[:1], b), once.states.arrays,
      tiny.committed(target, text, np.array([5]), 12).states.arrays)


@BOTH
def test_control_a_state_that_is_forgotten(target):
  def forgetful(params, tokens, positions, cache, *others):
    states = jax.tree.map(jnp.zeros_like, cache.states)
    return target.lm.forward(params, tokens, positions,
                             cache.replace(states=states), *others)

  with pytest.raises(AssertionError, match="forward of a tree"):
    conformance.check_model(target.lm._replace(forward=forgetful),
                            target.params, plain(target.lm))


def check_same_texts(method, temperature, models=(TARGET, DRAFT)):
  """Texts are those of models that read each text from its beginning."""
  run = functools.partial(tiny.generate, method,
                          sampling=dj.Sampling(temperature))
  actual, expected = run(tiny.Models(*models)), run(stateless(*models))
  np.testing.assert_array_equal(actual.tokens, expected.tokens)
  np.testing.assert_allclose(actual.log_probs, expected.log_probs, atol=1e-4)
  return actual


@pytest.mark.parametrize("temperature, target", [
    (0.0, TARGET), (1.0, MAMBA), pytest.param(1.0, TARGET, marks=pytest.mark.
                                              long),
    pytest.param(0.0, MAMBA, marks=pytest.mark.long)], ids=range(4))
def test_texts_of_trees(temperature, target):
  tree = check_same_texts(dj.methods.rsd_s(3, 2), temperature,
                          (target, tiny.noisy(target, 0.1)))
  assert (tree.stats.target_calls < tree.stats.emitted).all()
  if not temperature:
    np.testing.assert_array_equal(tree.tokens, tiny.generate(
        dj.methods.autoregressive(), tiny.Models(target, None),
        sampling=dj.Sampling(0)).tokens)


# Whose blocks are filled, moved or read otherwise than by levels.
@pytest.mark.long
@pytest.mark.parametrize("method", [
    dj.methods.speculative(3), dj.methods.rsd_c((2, 2), "traversal"),
    dj.methods.opt_tree(6, 3, 2), dj.methods.prompt_lookup(3, 2),
    dj.methods.beam_search(2), dj.methods.lookahead(3, 2, 2)],
                         ids=lambda x: x.name)
def test_texts_of_other_methods(method):
  check_same_texts(method, 1.0 if method.sampled else 0.0)


@pytest.mark.long
@pytest.mark.parametrize("way", ["chunks", "growth", "queue", "chunked queue"])
def test_texts_of_prompts_in_chunks_of_caches_that_grow_and_of_queues(
    way, monkeypatch):
  method = dj.methods.rsd_s(3, 2)
  run = functools.partial(tiny.generate, method, tiny.Models(TARGET, DRAFT))
  expected = run()
  if way == "chunks":
    monkeypatch.setattr(prefill, "CHUNK", 2)
  if way == "growth":
    monkeypatch.setattr(cache_lib, "_STEP", 1)
    monkeypatch.setattr(cache_growth, "_ROOM", 2)
  jax.clear_caches()
  actual = run(**{"queue": {"rows": 2}, "chunked queue": {
      "rows": 2, "prefill_chunk": 10}}.get(way, {}))
  jax.clear_caches()
  np.testing.assert_array_equal(actual.tokens, expected.tokens)
  np.testing.assert_allclose(actual.log_probs, expected.log_probs, atol=1e-4)


@pytest.mark.cases(1)
@CONFIGS
def test_the_first_layers_as_a_drafter(config):
  target = tiny.random_model(config)
  cache = tiny.committed(target, TOKENS, PREFIX, 12)
  for count in (1, 2):
    first = dataclasses.replace(config, num_layers=count)
    early = tiny.Model(transformer.early_exit(config, count), target.params)
    expected, _ = tiny.causal(tiny.Model(transformer.language_model(first),
                                         target.params), TOKENS)
    np.testing.assert_allclose(tiny.causal(early, TOKENS)[0], expected,
                               atol=1e-5)
    logits, _ = language_models.language_model(config).halves.early(
        count, target.params, TREE, PREFIX[:, None] + tiny.DEPTHS, cache,
        jnp.asarray(tiny.tree_mask(B)))
    of_first, _ = tiny.scored(
        early, tiny.committed(early, TOKENS, PREFIX, 12), TREE)
    np.testing.assert_allclose(logits, of_first, atol=1e-4)


@pytest.mark.parametrize("run, message", [
    (lambda: tiny.generate(dj.methods.pearl(2), tiny.Models(TARGET, DRAFT)),
     "sets a cache back to an earlier length"),
    (lambda: transformer.recent_window(tiny.DELTA, 4),
     "linear_key_heads=2: .* states hold all tokens"),
    (lambda: guided.combined([TARGET.lm, DRAFT.lm], jnp.add).init_cache(1, 4),
     "recurrent layers are not supported"),
    (lambda: dj.canvas.as_draft(dj.canvas.MaskedModel(MAMBA.lm, 12), 12),
     "model: a masked-diffusion model of recurrent layers is not supported"),
    *((functools.partial(dataclasses.replace, tiny.DELTA, **fields), message)
      for fields, message in (
          ({"scan_layers": True}, "scan_layers=True, linear_key_heads=2: "
           ".*neither windows nor a scan"),
          ({"window": 4}, "window=4, linear_key_heads=2"),
          ({"linear_value_heads": 3},
           "linear_value_heads=3, .* a multiple of the first")))],
                         ids=range(7))
def test_what_states_do_not_allow_is_refused(run, message):
  with pytest.raises(ValueError, match=message):
    run()


def p_value(config, target):
  """Of first tokens of texts of trees, by the model's joint distribution."""
  right = tiny.random_model(dataclasses.replace(config, vocab_size=4))
  draft = tiny.noisy(right, 0.5)
  prompt, rows = np.array([0, 3, 1, 2], np.int32), 4_000
  out = dj.generate(
      jax.random.key(3), np.tile(prompt, (rows, 1)), np.full(rows, 4),
      method=dj.methods.rsd_s(2, 2), target=target(right.lm),
      target_params=right.params, draft=right.lm, draft_params=draft.params,
      max_new_tokens=4)
  return helpers.p_value_of_model(right, prompt, out.tokens[:, :-1])


def without_siblings_apart(lm):
  """A model each node of which continues the state of the one before it."""
  def forward(params, tokens, positions, cache, block, slot, mask):
    mask = jnp.tril(jnp.ones_like(mask))
    return lm.forward(params, tokens, positions, cache, block, slot, mask)

  return lm._replace(forward=forward)


@pytest.mark.long
@CONFIGS
def test_joint_distribution(config):
  """Control: siblings that go on from each other's state."""
  assert p_value(config, lambda lm: lm) > exactness.MIN_P_VALUE
  assert p_value(config, without_siblings_apart) < (
      helpers.MAX_P_VALUE_OF_CONTROL)


def test_memory_of_a_tree_is_of_changes_and_not_of_states(tmp_path):
  """Of Qwen3-Next and Granite as published, in bytes; see docs/models.md."""
  def shapes(fields):
    lm = transformer.language_model(published_configs.read(tmp_path, fields))
    cache = jax.eval_shape(lambda: lm.init_cache(1, 1))
    return cache, jax.eval_shape(lambda x: cache_lib.init_block(x, 1), cache)

  cache, block = shapes(published_configs.QWEN_3_NEXT)
  # 36 layers of 32 heads of 128 x 128 numbers in float32; and of the inputs of
  # convolutions, 3 of 2 x 16 x 128 + 32 x 128 in bfloat16.
  assert memory.size(cache.states) == 36 * (32 * 128 * 128 * 4 + 3 * 8192 * 2)
  # Keys and values of 12 layers, of two heads each.
  assert memory.size((cache.keys, cache.values)) == 12 * 2 * 2 * 256 * 2
  # Of a node the decays, a key of each of 16 heads, a change of each of 32, and
  # the inputs.
  assert memory.size(block.features) == 36 * (
      4 * (32 + 16 * 128 + 32 * 128) + 2 * 8192)
  # Of Granite 4.0 H Micro: 36 layers of 64 heads of 128 x 64 numbers; of a node
  # 64 decays, one key for all heads, 64 changes, and the inputs.
  cache, block = shapes(published_configs.GRANITE_4_H)
  inputs = 2 * 128 + 64 * 64
  assert memory.size(cache.states) == 36 * (64 * 128 * 64 * 4 + 3 * inputs * 2)
  assert memory.size(block.features) == 36 * (
      4 * (64 + 128 + 64 * 64) + 2 * inputs)


@pytest.mark.long
def test_a_head_reads_layers_with_a_state():
  target = tiny.Model(transformer.with_features(tiny.DELTA, (0, 1, 2)),
                      TARGET.params)
  config = eagle.Config(formats.layer_of(tiny.DELTA), version=3)
  head = tiny.Model(
      eagle.head(config, tiny.DELTA),
      eagle.init(jax.random.key(0), config, tiny.DELTA))
  run = functools.partial(tiny.generate, sampling=dj.Sampling(0))
  outputs = run(dj.methods.rsd_s(2, 2), tiny.Models(target, head))
  np.testing.assert_array_equal(outputs.tokens, run(
      dj.methods.autoregressive(), tiny.Models(TARGET, None)).tokens)
