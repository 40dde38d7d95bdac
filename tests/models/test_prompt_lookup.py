"""The drafter that looks up what followed the same tokens before."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import conformance, exactness
from models import prompt_lookup, transformer

V = 4
METHODS = [dj.methods.speculative(2), dj.methods.rsd_c((2, 1)),
           dj.methods.rsd_s(3, 2), dj.methods.sequoia(((2,), (1, 0))),
           dj.methods.specinfer(2, 2), dj.methods.spectr(2, 2)]


def votes(text, ngram):
  """`[V]`, one place of a text after the other."""
  result, end = np.zeros(V), len(text) - 1
  for place in range(end):
    agreeing = 0
    while agreeing < min(ngram, place + 1) and (
        text[place - agreeing] == text[end - agreeing]):
      agreeing += 1
    if agreeing:
      result[text[place + 1]] += 16**agreeing * (1 + place / len(text))
  return result


@pytest.mark.parametrize("ngram", [1, 2, 5])
def test_all_places_vote(ngram):
  texts = np.random.default_rng(0).integers(0, V, (3, 12))
  distributions = jax.nn.softmax(transformer.causal_logits(
      prompt_lookup.language_model(V, ngram), (), jnp.asarray(texts)))
  for text, row in zip(texts, distributions):
    for end, probs in enumerate(row):
      expected = votes(text[:end + 1], ngram)
      expected = expected / expected.sum() if expected.any() else (
          np.full(V, 1 / V))
      np.testing.assert_allclose(probs, expected, atol=1e-5)


def test_many_tokens_that_agree():
  """16^40 would be infinite."""
  text = np.tile(np.arange(V), 12)[None]
  logits = transformer.causal_logits(prompt_lookup.language_model(V, 40), (),
                                     jnp.asarray(text))
  probs = jax.nn.softmax(logits[0, -1])
  np.testing.assert_allclose(probs, np.eye(V)[0], atol=1e-5)


def test_it_is_a_language_model():
  """Caches, blocks, masks, commits: the distribution of the text alone."""
  lm = prompt_lookup.language_model(V)
  conformance.check_model(lm, ())
  assert prompt_lookup.language_model(V, 4) is lm


@pytest.mark.cases(2)
@pytest.mark.parametrize("method", METHODS, ids=lambda x: x.name)
def test_a_text_that_repeats_is_drafted_in_full(method):
  """Once a target that goes round has been there, all is accepted."""
  around = np.roll(np.eye(V), 1, axis=1)
  target, params = exactness.table_model(around)
  out = dj.generate(
      jax.random.key(1), np.array([[0, 1, 2, 3, 0]]), np.array([5]),
      method=method, target=target, target_params=params, draft_params=(),
      draft=prompt_lookup.language_model(V), max_new_tokens=9,
      sampling=dj.Sampling(temperature=0))
  assert np.asarray(out.tokens[0]).tolist() == [i % V for i in range(14)]
  assert out.stats.target_calls[0] == 3  # Two drafts, and one after them.


@pytest.mark.parametrize("arguments, message", [
    ((0,), "vocab_size=0: a positive integer"),
    ((V, 1.5), "ngram=1.5: a positive integer")])
def test_wrong_numbers(arguments, message):
  with pytest.raises(ValueError, match=message):
    prompt_lookup.language_model(*arguments)
