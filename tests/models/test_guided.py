"""Targets made of several models: exact for their distribution, by any tree."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import decoding_jax as dj
from decoding_jax.testing import conformance, exactness
from models import cacheless, guided
from support import tiny_models as tiny

V, ROWS, LENGTH = 4, 50_000, 4
ALPHA, BETA = 0.2, 0.5


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


def counts(target, params, method=dj.methods.rsd_s(2, 2)):
  amateur, amateur_params = exactness.table_model(tables()[1])
  out = dj.generate(
      jax.random.key(0), np.zeros((ROWS, 1), np.int32),
      np.ones(ROWS, np.int32), method=method, target=target,
      target_params=params, draft=amateur, draft_params=amateur_params,
      max_new_tokens=LENGTH)
  values = np.zeros((V,) * LENGTH)
  np.add.at(values, tuple(np.asarray(out.tokens[:, 1:]).T), 1)
  return values


def models():
  return zip(*map(exactness.table_model, tables()))


@pytest.mark.cases(1)
@pytest.mark.parametrize("method", [dj.methods.rsd_s(2, 2),
                                    dj.methods.speculative(2)])
def test_joint_distribution_of_speculative_contrastive_decoding(method):
  """Control: it is not that of the expert."""
  lms, params = models()
  result = counts(guided.contrastive(*lms[:2], ALPHA, BETA), params[:2], method)
  of_table = lambda table: exactness.p_value(
      result, exactness.joint_distribution(table, 0, LENGTH))
  assert of_table(contrastive_table()) > exactness.MIN_P_VALUE
  assert of_table(tables()[0]) < 1e-12


def test_joint_distribution_of_proxy_tuning():
  """Control: it is not that of the model before."""
  lms, params = models()
  result = counts(guided.proxy_tuned(*lms), params)
  of_table = lambda table: exactness.p_value(
      result, exactness.joint_distribution(table, 0, LENGTH))
  assert of_table(proxy_table()) > exactness.MIN_P_VALUE
  assert of_table(tables()[0]) < 1e-12


def test_a_mixture_is_a_draft():
  """Its distribution is that of two drafts by weight."""
  (_, *lms), (_, *params) = models()
  draft = guided.mixture(lms, (1, 3))
  assert draft is guided.mixture(tuple(lms), (1, 3))
  tokens = jnp.arange(V, dtype=jnp.int32)[None]
  logits, _ = draft.forward(tuple(params), tokens, tokens,
                            draft.init_cache(1, V), dj.Block((), ()), 0, None)
  expected = tables()[1] / 4 + 3 * tables()[2] / 4
  np.testing.assert_allclose(jax.nn.softmax(logits[0]), expected, atol=1e-6)
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


def by_first_and_last(params, texts):
  """Logits that depend on the first token of a text, and on the last one."""
  return params[texts[:, :1], texts]


def test_joint_distribution_of_classifier_free_guidance():
  """Prompts of two lengths; a negative one of a token.

  Control: it is not that of the model without guidance.
  """
  scale, negative = 1.7, 3
  probs = np.random.default_rng(5).dirichlet(np.ones(V), (V, V))
  model = cacheless.language_model(by_first_and_last, V)
  target, params = guided.classifier_free(
      model, jnp.asarray(np.log(probs), jnp.float32), [negative], scale)
  draft, draft_params = exactness.table_model(tables()[1])
  rows = 40_000
  lengths = np.tile([1, 3], rows // 2)
  out = dj.generate(
      jax.random.key(0), np.tile(np.array([[1, 0, 2]], np.int32), (rows, 1)),
      lengths, method=dj.methods.rsd_s(2, 2), target=target,
      target_params=params, draft=draft, draft_params=draft_params,
      max_new_tokens=3)
  for length, last in ((1, 1), (3, 2)):
    actual = np.zeros((V,) * 3)
    texts = np.asarray(out.tokens)[lengths == length, length:length + 3]
    np.add.at(actual, tuple(texts.T), 1)
    given, other = np.log(probs[1]), np.log(probs[negative])
    mixed = normalised(other + scale * (given - other))
    start = other[[negative]]
    first, = normalised(start + scale * (given[[last]] - start))
    expected = first[:, None, None] * mixed[:, :, None] * mixed[None]
    assert exactness.p_value(actual, expected) > exactness.MIN_P_VALUE
    plain = exactness.joint_distribution(probs[1], last, 3)
    assert exactness.p_value(actual, plain) < 1e-12


def guided_greedily(model, negative, scale):
  """Greedy texts by whole forwards of both prompts, without a cache."""
  texts, others = [], []
  for row, length in zip(tiny.PROMPTS, tiny.LENGTHS):
    texts.append(row[:length].tolist())
    others.append(list(negative))
  width = tiny.PROMPTS.shape[1] + tiny.NEW

  def last_log_probs(texts):
    padded = np.array([x + [0] * (width - len(x)) for x in texts], np.int32)
    logits = np.asarray(tiny.causal(model, padded)[0])
    return np.asarray(jax.nn.log_softmax(logits[
        np.arange(len(texts)), [len(x) - 1 for x in texts]]))

  for _ in range(tiny.NEW):
    given, negative = last_log_probs(texts), last_log_probs(others)
    tokens = (negative + scale * (given - negative)).argmax(axis=1)
    for token, text, other in zip(tokens.tolist(), texts, others):
      text.append(token)
      other.append(token)
  return [text[length:] for text, length in zip(texts, tiny.LENGTHS)]


def test_classifier_free_guidance_of_a_transformer():
  """A negative prompt longer than some prompts; scanned layers.

  The draft is the model without guidance.
  """
  models, negative = tiny.llama_models(), (4, 2, 9, 9)
  lm, params = guided.classifier_free(*models.target, negative, 2.5)
  expected = guided_greedily(models.target, negative, 2.5)
  out = tiny.generate(
      dj.methods.rsd_c((2, 2)), tiny.Models(tiny.Model(lm, params),
                                            models.target),
      sampling=dj.Sampling(0.0))
  assert tiny.texts(out, tiny.LENGTHS) == expected
  # Control: guidance changes the texts.
  assert expected != guided_greedily(models.target, negative, 1.0)


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
