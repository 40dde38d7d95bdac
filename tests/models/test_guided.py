"""Targets made of several models: their distributions, and trees of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import conformance, exactness
from models import guided, transformer
from support import tiny_models as tiny

V, ALPHA, BETA = 4, 0.2, 0.5


def tables():
  rng = np.random.default_rng(7)
  return [exactness.random_table(rng, V) for _ in range(3)]


def normalised(logits):
  probs = np.exp(logits - logits.max(axis=1, keepdims=True))
  return probs / probs.sum(axis=1, keepdims=True)


def contrastive_table():
  """The same in numpy, float64."""
  expert, amateur, _ = tables()
  logits = (1 + BETA) * np.log(expert) - BETA * np.log(amateur)
  kept = expert >= ALPHA * expert.max(axis=1, keepdims=True)
  return normalised(np.where(kept, logits, -np.inf))


def proxy_table():
  base, tuned, untuned = map(np.log, tables())
  return normalised(base + tuned - untuned)


def models():
  return zip(*map(exactness.table_model, tables()))


def distributions(target, params):
  """`[V, V]`, of the token after each."""
  return jax.nn.softmax(transformer.causal_logits(
      target, tuple(params), jnp.arange(V)[None]))[0]


def test_distributions_of_contrastive_decoding_and_proxy_tuning():
  """Control: they are not those of the first model."""
  lms, params = models()
  for target, given, expected in (
      (guided.contrastive(*lms[:2], ALPHA, BETA), params[:2],
       contrastive_table()),
      (guided.proxy_tuned(*lms), params, proxy_table())):
    result = distributions(target, given)
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert np.abs(result - tables()[0]).max() > 0.1


def test_a_mixture_is_a_draft():
  (_, *lms), (_, *params) = models()
  draft = guided.mixture(lms, (1, 3))
  assert draft is guided.mixture(tuple(lms), (1, 3))
  expected = tables()[1] / 4 + 3 * tables()[2] / 4
  np.testing.assert_allclose(distributions(draft, params), expected, atol=1e-6)
  for weights in ((1,), (1, 0), (1, np.inf)):
    with pytest.raises(ValueError, match="weights="):
      guided.mixture(lms, weights)


def test_transformers_of_different_shapes():
  """Caches of both: cached logits are those without a cache, trees included."""
  expert, amateur = tiny.opt_models()
  params = expert.params, amateur.params
  target = guided.contrastive(expert.lm, amateur.lm, ALPHA, BETA)
  conformance.check_model(target, params)
  greedy, tree = (tiny.generate(
      method, tiny.Models(tiny.Model(target, params), amateur),
      sampling=dj.Sampling(0.0)).tokens
                  for method in (dj.methods.autoregressive(),
                                 dj.methods.rsd_c((2, 2))))
  np.testing.assert_array_equal(greedy, tree)


def guided_log_probs(model, text, start, negative, scale):
  """`[N, V]`, of each token after a prompt, by forwards of both prompts."""
  def log_probs(text, start):
    padded = np.zeros((1, 24), np.int32)
    padded[0, :len(text)] = text
    return jax.nn.log_softmax(tiny.causal(model, padded)[0][
        0, start - 1:len(text) - 1])

  given = log_probs(text, start)
  other = log_probs([*negative, *text[start:]], len(negative))
  return jax.nn.log_softmax(other + scale * (given - other))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_classifier_free_guidance_of_a_transformer(temperature):
  """A negative prompt longer than some prompts; scanned layers.

  The draft is the model without guidance. Control: guidance changes the texts.
  """
  models, negative = tiny.llama_models(), (4, 2, 9, 9)
  lm, params = guided.classifier_free(*models.target, negative, 2.5)
  out = tiny.generate(
      dj.methods.rsd_c((2, 2)), tiny.Models(tiny.Model(lm, params),
                                            models.target),
      sampling=dj.Sampling(temperature))
  others = 0
  for row, start in enumerate(tiny.LENGTHS):
    text = np.asarray(out.tokens)[row, :start + tiny.NEW]
    new, order = text[start:], np.arange(tiny.NEW)
    expected, plain = (guided_log_probs(models.target, text, start, negative,
                                        scale) for scale in (2.5, 1.0))
    if temperature:
      np.testing.assert_allclose(
          out.log_probs[row, start:start + tiny.NEW], expected[order, new],
          atol=1e-4)
    else:
      np.testing.assert_array_equal(expected.argmax(axis=1), new)
    others += np.abs(expected - plain)[order, new].max() > 0.1
  assert others


def test_guidance_of_other_ids_is_the_same_program():
  lm, params = exactness.table_model(tables()[0])
  (one, _), (two, _), (three, _) = (
      guided.classifier_free(lm, params, ids) for ids in ([1], [2], [1, 2]))
  assert one is two and one is not three


@pytest.mark.parametrize("ids, scale, message", [
    ([], 1, "negative_prompt="), ([V], 1, "negative_prompt="),
    ([-1], 1, "negative_prompt="), ([[0]], 1, "negative_prompt="),
    ([0], 0, "scale=0: a number above 0"), ([0], np.inf, "scale=inf: ")],
                         ids=str)
def test_guidance_that_cannot_be(ids, scale, message):
  lm, params = exactness.table_model(tables()[0])
  with pytest.raises(ValueError, match=message):
    guided.classifier_free(lm, params, ids, scale)


@pytest.mark.parametrize("arguments, message", [
    (dict(alpha=0), "alpha=0: "), (dict(alpha=1.5), "alpha=1.5: "),
    (dict(beta=-1), "beta=-1: ")])
def test_numbers_that_cannot_be(arguments, message):
  lms, _ = models()
  with pytest.raises(ValueError, match=message):
    guided.contrastive(*lms[:2], **arguments)


def test_vocabularies_that_differ():
  (lm, _), (other, _) = (exactness.table_model(np.eye(size)) for size in (3, 4))
  with pytest.raises(ValueError, match=r"vocab_size=\[3, 4\]"):
    guided.contrastive(lm, other)
