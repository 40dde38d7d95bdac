"""Tests of parallel prompt decoding on a target with prompt tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, tree_decoder, verifiers
from decoding_jax.testing import drafter_conformance, exactness
from models.heads import prompt_tokens
from support import helpers
from support import tiny_models as tiny

_CONFIG = dataclasses.replace(tiny.LLAMA, vocab_size=4)
_PROMPTS = prompt_tokens.Config(3)
_METHOD = dj.methods.ppd((2, 2, 1), 3, short=1)
_ROWS, _LENGTH = 8000, 4


@functools.lru_cache(maxsize=None)
def models():
  """A target of random parameters, prompt tokens included."""
  params = tiny.random_model(_CONFIG).params
  own = prompt_tokens.init(jax.random.key(1), _PROMPTS, _CONFIG)
  return {"target": prompt_tokens.target(_PROMPTS, _CONFIG),
          "target_params": {**params, "prompts": 30 * own["prompts"]}}


def p_value(method):
  """Of the first tokens, and how many there are a call."""
  out = dj.generate(jax.random.key(1), np.tile([[1, 2]], (_ROWS, 1)),
                    np.full(_ROWS, 2), method=method, max_new_tokens=_LENGTH,
                    **models())
  return helpers.p_value_of_model(tiny.random_model(_CONFIG), (1, 2),
                                  out.tokens), out.stats


def test_texts_have_the_distribution_of_the_target():
  result, stats = p_value(_METHOD)
  assert result >= exactness.MIN_P_VALUE
  assert stats.emitted.sum() > 1.1 * stats.target_calls.sum()
  assert not stats.draft_calls.any()


def test_control_guesses_that_are_tested_by_matches_alone():
  """At temperature 1 the most probable tokens are no samples."""
  drafter = drafters.ppd((2, 2, 1), 3, 1)
  result, _ = p_value(dj.Method("wrong", dj.Pair(drafter, verifiers.match()),
                                None))
  assert result < exactness.MIN_P_VALUE


def test_greedy_texts_are_those_of_the_target():
  given = {**models(), "sampling": dj.Sampling(temperature=0.0),
           "max_new_tokens": 9}
  plain, out = (dj.generate(jax.random.key(0), tiny.PROMPTS % 4, tiny.LENGTHS,
                            method=method, **given)
                for method in (dj.methods.autoregressive(), _METHOD))
  np.testing.assert_array_equal(out.tokens, plain.tokens)


def test_guesses_are_those_of_a_plain_forward():
  """Of the committed text and the prompt tokens, after chains of both sizes."""
  given = models()
  decoder = tree_decoder.of_pair(_METHOD.sampled)
  context, state = drafter_conformance._begin(
      decoder, drafter_conformance._Models(**given, draft=None,
                                           draft_params=None),
      jax.random.split(jax.random.key(4), 8),
      np.tile(tiny.PROMPTS[:2] % 4, (4, 1)), np.tile(tiny.LENGTHS[:2], 4),
      np.full(8, 30))
  step = jax.jit(lambda state: decoder.step(context, state))
  seen = set()
  for _ in range(4):
    state = step(state)
    guesses, known = map(np.asarray, state.carry)
    for row, length in enumerate(np.asarray(state.length)):
      result = prompt_tokens.with_chains(
          _PROMPTS, _CONFIG, given["target_params"],
          state.tokens[row, None, :length - 1], (int(length) - 2,))[1][0, 0]
      order = np.asarray(jnp.argsort(-result, axis=-1))[:, :3]
      np.testing.assert_array_equal(guesses[row, :known[row]],
                                    order[:known[row]])
    seen |= set(known.tolist())
  assert seen == {1, 3}


@pytest.mark.parametrize("arguments, message", [
    (((2, 1), 2, 3), "short=3: at most the 2 prompt tokens"),
    (((2, 0), 2), "widths"), (((2,), 2, 0), "short")])
def test_sizes_that_cannot_be(arguments, message):
  with pytest.raises(ValueError, match=message):
    dj.methods.ppd(*arguments)
