"""Drafting by a view of the target's own cache."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.runtime import cache as cache_lib
from decoding_jax.speculation import expanders, verifiers
from decoding_jax.testing import exactness
from models import transformer
from models.transformer import sink_window
from support import helpers, tiny_models as tiny

TARGET = tiny.random_model(dataclasses.replace(tiny.LLAMA, max_length=128))
CONFIG = dataclasses.replace(tiny.LLAMA, max_length=128)
V = CONFIG.vocab_size
ROWS, LENGTH = 3, 24


def generate(method, window, target=TARGET, new=12, temperature=1.0, **given):
  rng = np.random.default_rng(0)
  prompts = rng.integers(0, target.lm.vocab_size, (ROWS, LENGTH), np.int32)
  draft = {} if window is None else {
      "draft": transformer.recent_window(CONFIG, window),
      "draft_params": target.params}
  return dj.generate(
      jax.random.key(1), prompts, np.array([LENGTH, 9, 2]), method=method,
      target=target.lm, target_params=target.params, max_new_tokens=new,
      sampling=dj.Sampling(temperature), **draft | given)


def with_expand(expander, expand):
  """Returns a method of the expander, its `expand` another one."""
  return dj.Method("window", dj.pair(
      expander._replace(expand=expand), verifiers.recursive(False)), None)


def test_what_a_cache_keeps():
  """The first two slots and the newest three; control: the lengths."""
  lengths = jnp.array([0, 1, 2, 4, 5, 6, 9, 10])
  slots = jnp.arange(10, dtype=jnp.float32)
  keys = jnp.broadcast_to(slots, (2, len(lengths), 1, 1, 10))
  cache = dj.Cache((keys,), (jnp.swapaxes(keys, -1, -2),), lengths,
                   {"slots": jnp.broadcast_to(slots, (len(lengths), 10))})
  result = cache_lib.latest(cache, 2, 3)
  for row, length in enumerate(lengths.tolist()):
    kept = [i for i in range(length) if i < 2 or i >= length - 3]
    assert int(result.length[row]) == len(kept)
    for array in (result.keys[0][1, row, 0, 0],
                  result.values[0][1, row, 0, :, 0],
                  result.features["slots"][row]):
      assert array[:len(kept)].tolist() == kept
  assert cache_lib.latest(cache, 7, 3).keys[0] is keys


@pytest.mark.parametrize("scan_layers", [False, True])
def test_drafts_are_those_of_a_text_without_its_middle(scan_layers):
  """The oracle is a causal forward whose mask lacks the middle.

  Control: with all of the text the distributions are others.
  """
  config = dataclasses.replace(CONFIG, scan_layers=scan_layers)
  target = tiny.random_model(config)
  length = 20
  tokens = np.random.default_rng(2).integers(0, V, (1, length), np.int32)

  def masked(window):
    """Log-probabilities after the last token, the root."""
    order = np.arange(length)
    mask = order[:, None] >= order
    mask[-1, sink_window.SINKS:length - 1 - window] = False
    lm, block = target.lm, dj.Block(*jax.tree.map(
        jnp.zeros_like, (cache.keys, cache.values)))
    for start, stop in ((0, length - 1), (length - 1, length)):
      logits, block = lm.forward(
          target.params, tokens[:, start:stop], order[None, start:stop],
          lm.init_cache(1, 0), block, start, mask[None, start:stop])
    return jax.nn.log_softmax(logits[0, -1])

  cache = target.lm.init_cache(1, length)
  seen = []

  def expand(key, level, log_probs, valid, state):
    jax.debug.callback(seen.append, log_probs[0])
    return plain.expand(key, level, log_probs, valid, state)

  plain = expanders.gumbel_tree((1,))
  dj.generate(jax.random.key(0), tokens, np.array([length]),
              method=with_expand(plain, expand), target=target.lm,
              target_params=target.params,
              draft=transformer.recent_window(config, 3),
              draft_params=target.params, max_new_tokens=1)
  jax.effects_barrier()
  np.testing.assert_allclose(seen[0], masked(3), atol=2e-5)
  assert abs(seen[0] - masked(length)).max() > 0.01


@pytest.mark.parametrize("method", [
    dj.methods.rsd_s(2, 2), dj.methods.speculative(3, "block"),
    dj.methods.opt_tree(4, 2, 2)], ids=lambda x: x.name)
def test_greedy_texts_are_those_of_the_target(method):
  expected = generate(dj.methods.autoregressive(), None, temperature=0)
  actual = generate(method, 2, temperature=0)
  np.testing.assert_array_equal(actual.tokens, expected.tokens)


def test_a_window_of_all_of_the_text_is_always_accepted():
  """Control: not of a short one."""
  whole, short = (generate(dj.methods.speculative(3), window, new=12)
                  for window in (64, 1))
  assert whole.stats.target_calls.max() <= 3
  assert short.stats.target_calls.min() > 3


def p_value(other=1.0):
  """Of first tokens that are drafted by this power of reported probabilities.
  """
  config = dataclasses.replace(CONFIG, vocab_size=4)
  target, plain = tiny.random_model(config), expanders.gumbel_tree((2, 2))

  def expand(key, level, log_probs, valid, state):
    return plain.expand(key, level, jax.nn.log_softmax(other * log_probs),
                        valid, state)

  prompt, rows = np.array([0, 3, 1, 1, 2, 3, 0, 2, 1, 0], np.int32), 20_000
  out = dj.generate(
      jax.random.key(3), np.tile(prompt, (rows, 1)), np.full(rows, len(prompt)),
      method=with_expand(plain, expand), target=target.lm,
      target_params=target.params, draft_params=target.params,
      draft=transformer.recent_window(config, 2), max_new_tokens=4)
  return helpers.p_value_of_model(target, prompt, out.tokens[:, :-1])


@pytest.mark.long
def test_joint_distribution():
  """Control: drafts of other probabilities than it reports."""
  assert p_value() > exactness.MIN_P_VALUE
  assert p_value(other=0.3) < helpers.MAX_P_VALUE_OF_CONTROL


def test_same_texts_with_a_logits_processor():
  """Its states are part of the target's cache, and of the view.

  Control: without it texts are others.
  """
  apply = functools.partial(
      dj.processors.apply, dj.processors.repetition_penalty(1.8, V), ())
  lm, params = apply(TARGET.lm, TARGET.params)
  draft, draft_params = apply(transformer.recent_window(CONFIG, 2),
                              TARGET.params)
  target = tiny.Model(lm, params)
  expected = generate(dj.methods.autoregressive(), None, target, temperature=0)
  actual = generate(dj.methods.rsd_s(2, 2), 2, target, temperature=0,
                    draft=draft, draft_params=draft_params)
  np.testing.assert_array_equal(actual.tokens, expected.tokens)
  plain = generate(dj.methods.autoregressive(), None, temperature=0)
  assert (plain.tokens != expected.tokens).any()


def test_methods_that_need_a_cache_of_the_draft():
  with pytest.raises(ValueError, match="method gsd.* needs a draft model that"):
    generate(dj.methods.gsd(4, 2, 2), 2)


@pytest.mark.parametrize("config, window, message", [
    (CONFIG, 0, "window=0: at least 1 is needed"),
    (tiny.GEMMA, 4, "layers with a window of 3, which count positions by")])
def test_windows_that_cannot_be(config, window, message):
  with pytest.raises(ValueError, match=message):
    transformer.recent_window(config, window)
