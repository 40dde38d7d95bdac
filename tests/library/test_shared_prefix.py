"""A prefix that is kept once gives the texts of prompts that repeat it."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.runtime import cache as cache_lib, cache_growth, prefill
from decoding_jax.testing import exactness
from models import cacheless, transformer
from support import helpers, small_heads, tiny_models as tiny

L = 11
_LONG = functools.partial(dataclasses.replace, max_length=64)
CONFIGS = {
    "llama": tiny.LLAMA,
    # Learned positions.
    "opt": tiny.OPT,
    # Windows that end within the prefix at first, and then after it.
    "window": dataclasses.replace(tiny.LLAMA, window=9),
    # Two kinds of layers, a window of 3 and a soft cap; in one scan.
    "gemma": tiny.GEMMA,
    "scanned gemma": dataclasses.replace(tiny.GEMMA, scan_layers=True)}
PLAIN = dj.methods.autoregressive()
METHODS = [PLAIN, dj.methods.speculative(3, "block"), dj.methods.rsd_s(3, 2)]
# Some of their tokens are in the vocabularies of all models.
PREFIX = np.random.default_rng(0).integers(0, 13, L).astype(np.int32)


def models(name="llama", **draft):
  return tiny.long_models(CONFIGS[name], **draft)


def generate(given, prefix=None, begins=None, method=PLAIN, generate_=None,
             **kwargs):
  """A generation with a shared prefix, or of prompts that begin with one."""
  vocab = given["target"].vocab_size
  prompts, lengths = tiny.PROMPTS % vocab, tiny.LENGTHS
  if begins is not None:
    prompts = np.concatenate([np.tile(begins % vocab, (3, 1)), prompts], axis=1)
    lengths = lengths + len(begins)
  given = {"method": method, "max_new_tokens": tiny.NEW, **given, **kwargs}
  if prefix is not None:
    given["shared_prefix"] = prefix % vocab
  return (generate_ or dj.generate)(jax.random.key(5), prompts, lengths,
                                    **given)


def check_same(given, also=(), **kwargs):
  """Asserts the same texts and counts, and others after another prefix."""
  expected = generate(given, begins=PREFIX, **kwargs)
  for more in ({}, *also):
    out = generate(given, PREFIX, **kwargs, **more)
    np.testing.assert_array_equal(out.tokens, expected.tokens)
    jax.tree.map(np.testing.assert_array_equal, out.stats, expected.stats)
    np.testing.assert_allclose(out.log_probs, expected.log_probs, atol=1e-4)
  other = generate(given, PREFIX + 1, **kwargs)
  assert np.abs(other.log_probs - expected.log_probs)[:, L:].max() > 0.1


@pytest.mark.cases(2)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", CONFIGS)
def test_texts_are_those_of_prompts_that_repeat_it(name, method, temperature):
  check_same(models(name), method=method,
             sampling=dj.Sampling(temperature=temperature))


def test_in_a_queue():
  check_same(models(), [{"rows": 2}], method=METHODS[-1])


@pytest.mark.long
def test_in_chunks_and_in_caches_that_grow(monkeypatch):
  monkeypatch.setattr(prefill, "CHUNK", 2)
  monkeypatch.setattr(cache_growth, "_ROOM", 0)
  monkeypatch.setattr(cache_lib, "_STEP", 2)
  check_same(models("window"), method=METHODS[-1])


def test_step_by_step():
  expected = generate(models(), begins=PREFIX, method=METHODS[-1])
  *_, last = generate(models(), PREFIX, method=METHODS[-1], generate_=dj.stream)
  np.testing.assert_array_equal(last.tokens, expected.tokens)
  run = generate(models(), PREFIX, method=METHODS[-1], generate_=dj.begin)
  for cache in (run.state.target_cache, run.state.draft_cache):
    assert cache.shared.keys[0].shape == (1, 2, 4, L)
    assert cache.shared.values[0].shape == (1, 2, L, 4)
    slots = cache_lib.round_up(tiny.PROMPTS.shape[1] + tiny.NEW + 3)
    assert cache.keys[0].shape == (3, 2, 4, slots)
  while not run.done.all():
    run, _ = dj.step(run)
  np.testing.assert_array_equal(dj.result(run).tokens, expected.tokens)


def test_a_single_row_and_one_shared_token():
  given = models()
  one = lambda **more: dj.generate(
      jax.random.key(5), method=PLAIN, max_new_tokens=5, **given, **more)
  expected = one(prompts=[[3, 7, 2]], prompt_lengths=[3])
  for count in (1, 2):
    tokens = [3, 7, 2]
    out = one(prompts=[tokens[count:]], prompt_lengths=[3 - count],
              shared_prefix=tokens[:count])
    np.testing.assert_array_equal(out.tokens, expected.tokens)


def test_a_drafter_that_cannot_share():
  given = models(reads_shared=False)
  check_same(given, method=METHODS[1])
  run = generate(given, PREFIX, method=METHODS[1], generate_=dj.begin)
  assert run.state.draft_cache.shared is None
  assert cache_lib.capacity(run.state.draft_cache) == cache_lib.capacity(
      run.state.target_cache)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", ["delta", "without a cache"])
def test_a_target_that_cannot_share(name):
  """States of recurrent layers and models without a cache repeat it."""
  given = models()
  if name == "delta":
    target = tiny.random_model(_LONG(tiny.DELTA))
    given.update(target=target.lm, target_params=target.params)
  else:
    given["target"] = cacheless.language_model(functools.partial(
        transformer.causal_logits, given["target"]), 13, 64)
  check_same(given, [{"rows": 2}], method=METHODS[-1])
  assert generate(given, PREFIX, generate_=dj.begin).context.num_shared == 0


@pytest.mark.long
@pytest.mark.parametrize("reads_prompt", [False, True])
def test_with_a_processor(reads_prompt):
  """Its states are kept with the keys; the first one is of the prefix."""
  processor = tiny.counting_processor(reads_prompt)
  given = models()
  target, target_params = dj.processors.apply(
      processor, (), given["target"], given["target_params"])
  check_same({**given, "target": target, "target_params": target_params},
             [{"rows": 2}], method=METHODS[-1])


@pytest.mark.long
@pytest.mark.parametrize("name, method", [
    ("eagle3", dj.methods.speculative(2)), ("hydra++", dj.methods.rsd_s(2, 2)),
    ("medusa", dj.methods.rsd_c((2, 2)))])
def test_heads_read_the_features_of_the_prefix(name, method, monkeypatch):
  given = small_heads.models(name)
  check_same(given, method=method)
  monkeypatch.setattr(prefill, "CHUNK", 4)
  check_same(given, method=method)


@pytest.mark.long
def test_methods_that_read_caches():
  given = models()
  config = CONFIGS["llama"]
  given["target"] = transformer.with_features(config, (config.num_layers,))
  check_same(given, method=dj.methods.contrastive_search(3),
             sampling=dj.Sampling(temperature=0.0))
  given["draft"] = transformer.early_exit(config, 1)
  given["draft_params"] = given["target_params"]
  check_same(given, method=METHODS[-1])


def test_what_is_refused():
  given = models()
  with pytest.raises(ValueError, match=r"shared_prefix=\[ 3 99\]: 0 to 12"):
    dj.generate(jax.random.key(0), [[1]], [1], method=PLAIN,
                shared_prefix=[3, 99], **given)
  for wrong in ([], [[1]], [0.5]):
    with pytest.raises(ValueError, match=r"integers \[L\] are needed"):
      dj.generate(jax.random.key(0), [[1]], [1], method=PLAIN,
                  shared_prefix=wrong, **given)
  with pytest.raises(ValueError, match="max_new_tokens=9 need 66 positions"):
    generate(given, np.zeros(52, np.int32))


# Texts of 4 tokens, of 4 each, by a target that is far from a table.
_ROWS, _LENGTH = 20_000, 4


def _p_value(shift):
  """Of texts whose own positions are too large by so many."""
  target = tiny.random_model(_LONG(small_heads.TARGET))
  draft = tiny.noisy(target, 0.3)

  def forward(params, tokens, positions, cache, *args):
    own = shift if cache.shared else 0
    return target.lm.forward(params, tokens, positions + own, cache, *args)

  prefix = PREFIX % 4
  out = dj.generate(
      jax.random.key(1), np.full((_ROWS, 1), 2), np.ones(_ROWS, int),
      method=METHODS[-1], target=target.lm._replace(forward=forward),
      target_params=target.params, draft=draft.lm, draft_params=draft.params,
      max_new_tokens=_LENGTH, shared_prefix=prefix)
  return helpers.p_value_of_model(target, (*prefix, 2), out.tokens)


@pytest.mark.long
def test_texts_have_the_distribution_of_the_target():
  """Control: positions that do not follow those of the prefix."""
  assert _p_value(0) > exactness.MIN_P_VALUE > _p_value(1)
