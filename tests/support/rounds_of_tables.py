"""Texts of methods whose drafter works beside the target, on small models."""

import jax
import numpy as np

import decoding_jax as dj
from decoding_jax.testing import exactness
from support import tiny_models as tiny

V, NEW, END = 5, 14, 4


def generate(method, target, draft, firsts=range(V), **kwargs):
  """Texts after each of some tokens, of tables `[V, V]`."""
  firsts = np.array(firsts, np.int32)
  return dj.generate(
      jax.random.split(jax.random.key(0), V)[firsts], firsts[:, None],
      np.ones(len(firsts), np.int32), method=method, max_new_tokens=NEW,
      eos_id=END, **tiny.arguments(tiny.tables(target, draft)), **kwargs)


def check_rows(method):
  """Asserts the same texts in a batch, in a queue, in another order."""
  target, draft = exactness.random_tables(V)
  whole, queued, turned = (
      np.asarray(generate(method, target, draft, **kwargs).tokens)
      for kwargs in ({}, {"rows": 2}, {"firsts": range(V)[::-1]}))
  np.testing.assert_array_equal(whole, queued)
  np.testing.assert_array_equal(whole, turned[::-1])


def calls_of_itself(method):
  """Asserts greedy texts, of a drafter that errs and of the target itself."""
  models = tiny.opt_models()
  same = tiny.Models(models.target, models.target)
  plain, ours, own = (
      tiny.generate(method, pair, sampling=dj.Sampling(0.0)) for method, pair in
      ((dj.methods.autoregressive(), models), (method, models), (method, same)))
  np.testing.assert_array_equal(plain.tokens, ours.tokens)
  np.testing.assert_array_equal(plain.tokens, own.tokens)
  return np.asarray(own.stats.target_calls)
