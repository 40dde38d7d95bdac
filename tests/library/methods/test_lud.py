"""Lexical unit decoding, against plain Python on whole texts. It is lossy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from models import transformer
from models.heads import prompt_tokens
from support import tiny_models as tiny

_PADS = 3


@functools.lru_cache(maxsize=None)
def model():
  """A target of random parameters, pads included, and not too unsure."""
  params = tiny.random_model(tiny.LLAMA).params
  own = prompt_tokens.init(jax.random.key(1), prompt_tokens.Config(_PADS),
                           tiny.LLAMA)
  return tiny.Model(transformer.with_prompts(tiny.LLAMA, _PADS),
                    {**params, "head": 3 * params["head"],
                     "prompts": 30 * own["prompts"]})


def generate(method):
  return dj.generate(
      jax.random.key(0), tiny.PROMPTS, tiny.LENGTHS, method=method,
      target=model().lm, target_params=model().params, max_new_tokens=tiny.NEW,
      sampling=dj.Sampling(temperature=0.0))


def reference(text, confidence):
  """Returns a text after `NEW` more tokens, and how many forwards it took."""
  text, calls, end = [*map(int, text)], 0, len(text) + tiny.NEW
  while len(text) < end:
    pads = [-1 - i for i in range(_PADS)]
    logits = np.asarray(transformer.causal_logits(
        *model(), jnp.asarray([text + pads])))[0, len(text) - 1:]
    calls += 1
    text.append(int(logits[0].argmax()))
    for row in np.exp(logits[1:] - logits[1:].max(axis=1, keepdims=True)):
      if row.max() / row.sum() < confidence:
        break
      text.append(int(row.argmax()))
  return text[:end], calls


@pytest.mark.cases(1)
@pytest.mark.parametrize("confidence", [0.0, 0.5, 0.8])
def test_texts_are_those_of_plain_python(confidence):
  out = generate(dj.methods.lud(_PADS, confidence))
  shortened = False
  for row, length in enumerate(tiny.LENGTHS):
    expected, calls = reference(tiny.PROMPTS[row, :length], confidence)
    assert out.tokens[row, :length + tiny.NEW].tolist() == expected
    # The reference has its guesses one step earlier, in the step itself.
    assert 0 <= out.stats.target_calls[row] - calls <= 1
    shortened |= calls < tiny.NEW
  assert shortened


def test_control_it_is_lossy_and_exact_where_nothing_is_taken():
  plain, careful, rash = (np.asarray(generate(method).tokens) for method in (
      dj.methods.autoregressive(), dj.methods.lud(_PADS, 1.1),
      dj.methods.lud(_PADS, 0.0)))
  np.testing.assert_array_equal(careful, plain)
  assert (rash != plain).any()
