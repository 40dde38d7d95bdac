"""Tests of parallel prompt decoding on a target with prompt tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.speculation import drafters, verifiers
from decoding_jax.testing import exactness
from models.heads import prompt_tokens
from support import head_states, tiny_models as tiny

_CONFIG = dataclasses.replace(tiny.LLAMA, vocab_size=4)
_PROMPTS = prompt_tokens.Config(3)
_METHOD = dj.methods.ppd((2, 2, 1), 3, short=1)


@functools.lru_cache(maxsize=None)
def models():
  """A target of random parameters, prompt tokens included."""
  params = tiny.random_model(_CONFIG).params
  own = prompt_tokens.init(jax.random.key(1), _PROMPTS, _CONFIG)
  return {"target": prompt_tokens.target(_PROMPTS, _CONFIG),
          "target_params": {**params, "prompts": 30 * own["prompts"]}}


def test_texts_have_the_distribution_of_the_target():
  result, stats = head_states.fit(_METHOD, models())
  assert result >= exactness.MIN_P_VALUE
  assert stats.emitted.sum() > 1.1 * stats.target_calls.sum()
  assert not stats.draft_calls.any()


def test_control_guesses_that_are_tested_by_matches_alone():
  drafter = drafters.ppd((2, 2, 1), 3, 1)
  pair = dj.Pair(drafter, verifiers.match())
  result, _ = head_states.fit(dj.Method("wrong", pair, None), models())
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
  seen = set()
  for state, _ in head_states.stepped(given, _METHOD.sampled, 4)[1]:
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
