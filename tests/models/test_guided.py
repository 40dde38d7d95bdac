"""Targets made of several models: exact for their distribution, by any tree."""

import jax
import numpy as np
import pytest

import decoding_jax as dj
from models import guided
from models.testing import conformance
from models.testing import exactness
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


def counts(target, params):
  amateur, amateur_params = exactness.table_model(tables()[1])
  out = dj.generate(
      jax.random.key(0), np.zeros((ROWS, 1), np.int32),
      np.ones(ROWS, np.int32), method=dj.methods.rsd_s(2, 2), target=target,
      target_params=params, draft=amateur, draft_params=amateur_params,
      max_new_tokens=LENGTH)
  found = np.zeros((V,) * LENGTH)
  np.add.at(found, tuple(np.asarray(out.tokens[:, 1:]).T), 1)
  return found


def models():
  return zip(*map(exactness.table_model, tables()))


def test_joint_distribution_of_contrastive_decoding():
  """Control: it is not that of the expert."""
  lms, params = models()
  found = counts(guided.contrastive(*lms[:2], ALPHA, BETA), params[:2])
  of_table = lambda table: exactness.p_value(
      found, exactness.joint_distribution(table, 0, LENGTH))
  assert of_table(contrastive_table()) > exactness.MIN_P_VALUE
  assert of_table(tables()[0]) < 1e-12


def test_joint_distribution_of_proxy_tuning():
  lms, params = models()
  found = counts(guided.proxy_tuned(*lms), params)
  probs = exactness.joint_distribution(proxy_table(), 0, LENGTH)
  assert exactness.p_value(found, probs) > exactness.MIN_P_VALUE


def test_transformers_of_different_shapes():
  """Caches of both: cached logits are those without a cache, trees included."""
  expert, amateur = tiny.opt_models()
  params = expert.params, amateur.params
  target = guided.contrastive(expert.lm, amateur.lm, ALPHA, BETA)
  conformance.check(target, params)
  greedy, tree = (tiny.generate(
      method, tiny.Models(tiny.Model(target, params), amateur),
      sampling=dj.Sampling(0.0)).tokens
                  for method in (dj.methods.autoregressive(),
                                 dj.methods.rsd_c((2, 2))))
  np.testing.assert_array_equal(greedy, tree)


@pytest.mark.parametrize("arguments, message", [
    (dict(alpha=0), "alpha=0: "), (dict(alpha=1.5), "alpha=1.5: "),
    (dict(beta=-1), "beta=-1: ")])
def test_numbers_that_cannot_be(arguments, message):
  lms, _ = models()
  with pytest.raises(ValueError, match=message):
    guided.contrastive(*lms[:2], **arguments)


def test_vocabularies_that_differ():
  (lm, _), (other, _) = (exactness.table_model(np.eye(size))
                         for size in (3, 4))
  with pytest.raises(ValueError, match=r"vocab_size=\[3, 4\]"):
    guided.contrastive(lm, other)
